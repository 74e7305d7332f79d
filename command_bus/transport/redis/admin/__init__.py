"""Redis, the operator's side: reading and changing what is stored."""
