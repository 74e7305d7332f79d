"""The smallest useful program: accounts with deposits, withdrawals and balances. Run it with `python -m examples.bank`."""

from __future__ import annotations

__all__: list[str] = []
