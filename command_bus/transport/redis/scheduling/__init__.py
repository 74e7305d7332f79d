"""Schedules as Redis stores them."""
