"""Accounts over HTTP: a FastAPI application that sends commands, and their handlers for a worker."""

from __future__ import annotations

__all__: list[str] = []
