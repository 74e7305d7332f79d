"""Redis, bulk dispatches and their outcomes."""
