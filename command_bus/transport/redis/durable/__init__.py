"""Side records of durable commands, and what is suspended."""
