"""From rows to commands: planning, encoding and sending."""
