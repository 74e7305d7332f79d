"""Integrations with web frameworks. Each module needs its framework; no other module of the package does."""
