"""What was dispatched, compared with what happened."""
