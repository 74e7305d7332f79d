"""The operator's role: entities, dead letters, events, workers and statistics."""
