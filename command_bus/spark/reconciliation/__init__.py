"""Comparing dispatched rows with their outcomes."""
