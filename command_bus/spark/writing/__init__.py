"""Writing rows as commands."""
