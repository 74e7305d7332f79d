"""Migrations of the app, in order."""
