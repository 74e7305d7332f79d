"""A small shop as a package: settings, commands, handlers, web, worker, tests, each in its place."""

from __future__ import annotations

__all__: list[str] = []
