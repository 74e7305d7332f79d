"""What a worker does with one command: read it, run its handler, decide what becomes of it."""
