"""Redis, the sender's side: enqueueing and replies."""
