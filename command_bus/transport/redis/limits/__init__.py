"""Limits on Redis: the rules, how workers ask for leave, and how those that wait are woken."""
