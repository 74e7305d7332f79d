"""A check whether Spark can run here. If not, its tests are skipped: a development machine needs no Java."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

from scripts import java

__all__ = ["what_is_missing"]


@cache
def what_is_missing() -> str | None:
    """Return the reason to skip, or None: then JAVA_HOME names a suitable Java."""
    if find_spec("pyspark") is None:
        return "pyspark is not installed (`make test` installs it where there is a Java)"
    home = java.find()
    if home is None:
        return java.NONE
    os.environ["JAVA_HOME"] = str(home)
    return None
