"""The worker's role: runs handlers and decides how each command is settled."""
