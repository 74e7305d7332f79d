"""Programs that use the bus the way an application would: `examples.bank` is tiny, `examples.flights` proves the promises."""

from __future__ import annotations

__all__: list[str] = []
