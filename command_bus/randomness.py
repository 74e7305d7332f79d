"""Randomness, from two places: tokens that name things, and one generator for jitter.

Everything random in the package comes from here, so that a simulation can seed all of it (`use_tokens_from`, `JITTER.seed`). One
generator serves all backoffs: making one for each, as they begin, cost more than the backoff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

JITTER = Random()
"""For delays; a forked process draws its own."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=JITTER.seed)

_source: Callable[[int], bytes] = os.urandom


def token(size: int) -> bytes:
    """Return this many unpredictable bytes."""
    return _source(size)


def use_tokens_from(source: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Take tokens from somewhere else: for simulations, which must be able to repeat themselves. Return where they came from before."""
    global _source
    before, _source = _source, source
    return before
