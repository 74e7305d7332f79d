"""Whether Spark can run here. Its tests are skipped, not failed, where it cannot: a machine for development needs no Java."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

from scripts import java

__all__ = ["what_is_missing"]


@cache
def what_is_missing() -> str | None:
    """The reason to skip, or None: then JAVA_HOME names a Java that will do."""
    if find_spec("pyspark") is None:
        return "pyspark is not installed (`make test` installs it where there is a Java)"
    home = java.find()
    if home is None:
        return java.NONE
    os.environ["JAVA_HOME"] = str(home)
    return None
