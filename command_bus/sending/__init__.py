"""The sender's role: from a message to an accepted command, a reply or a result."""
