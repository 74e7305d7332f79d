"""Keyword arguments of buses that are handed on, as types: a checker finds a misspelt one at the call, and an editor offers the right ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from command_bus.settings import SettingOverrides

if TYPE_CHECKING:
    from command_bus.handlers.registry import HandlerRegistry
    from command_bus.middleware import Middleware
    from command_bus.observer import Observer
    from command_bus.serialization.protection import PayloadCipher
    from command_bus.settings import BusSettings

__all__ = ["BusArguments", "BusOptions"]


class BusOptions(SettingOverrides, total=False):
    """What a bus is made with, besides its server and its handlers; see `CommandBus`."""

    namespace: str | None
    settings: BusSettings | None
    middleware: Sequence[Middleware]
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None
    cipher: PayloadCipher | None
    observer: Observer | None


class BusArguments(BusOptions, total=False):
    """What a bus is made with, besides its server; see `CommandBus`."""

    registry: HandlerRegistry | None
