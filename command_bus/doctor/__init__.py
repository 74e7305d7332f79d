"""Checks of `command-bus doctor`, one module for each part of a namespace."""
