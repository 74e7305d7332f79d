"""Schedules: commands that come at times, without a process that must not die. See `schedules.py`."""
