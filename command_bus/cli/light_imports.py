"""The import of the bus for a short program: most of a command's time is imports."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def import_bus() -> None:
    """Import what every command that talks to a server needs."""
    with _light_imports():
        import_module("command_bus.bus")
        import_module("command_bus.transport.redis.namespace")


@contextmanager
def _light_imports() -> Generator[None]:
    """Leave out of imports what a short program does not need. Not used with `--app`: an application may need it.

    It saves a quarter of the time. The garbage collector would scan the imported modules many times and find nothing. pydantic would
    read the metadata of every installed package to look for plugins. redis-py would load OpenTelemetry if it is installed.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    modules: dict[str, Any] = sys.modules
    unwanted = {"opentelemetry"} - modules.keys()
    modules.update(dict.fromkeys(unwanted))  # None in sys.modules makes an import fail
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        for name in unwanted:
            del modules[name]
