"""Schemas of an application's commands: written to a file, and compared with it."""
