"""Worker processes: loading, supervising, restarting and health."""
