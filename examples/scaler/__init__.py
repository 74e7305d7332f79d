"""Workers from zero: an agent starts worker processes when there is work, and they end when there is none. Run `python -m examples.scaler`."""

from __future__ import annotations

__all__: list[str] = []
