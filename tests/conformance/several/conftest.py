"""The handlers of commands of several entities, for each test of this folder."""

from tests.conformance.several.commands import log

__all__ = ["log"]
