"""dependency-injector and the bus (extra `di`): a `Container` that wires settings, connections, bus and worker.

An application subclasses it and adds its own providers. Handlers get their dependencies from it with `@inject`, or are methods of an
object that a provider creates per command (`registry.include(container.accounts)`):

    class Shop(Container):
        database = providers.Resource(open_database)  # one for the process: open before the first command, closed after the last
        session = providers.ContextLocalResource(open_session, database)  # one per command: Closing[Provide[…]] closes it
        accounts = providers.Factory(Accounts, database)

    @handles(Deposit)
    @inject
    async def deposit(command: Deposit, session: Session = Closing[Provide[Shop.session]]) -> int: ...

    container = Shop()
    container.config.from_dict({"namespace": "shop"})

`command-bus worker shop:container.bus` runs it. It may also be a part of the application's container, as in
`messaging = providers.Container(Container)`: then the modules are wired to the whole, and the resources of the whole opened.
Singletons and resources belong to one process, so that happens when a worker starts, and not when modules are imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType
from typing import Any, Self

from command_bus.bus import CommandBus
from command_bus.errors import MissingExtra
from command_bus.handlers.injection import ResourceContainer, close_resources, open_resources
from command_bus.handlers.registry import HandlerRegistry, default_registry
from command_bus.middleware import Middleware
from command_bus.settings import BusSettings
from command_bus.transport.redis.connection.factory import ClientFactory
from command_bus.worker.worker import Worker

try:
    from dependency_injector import containers, providers
except ImportError as error:  # pragma: no cover - depends on the environment
    raise MissingExtra("command_bus.container needs dependency-injector: pip install 'command-bus[di]'") from error

Lifespan = Callable[[], AbstractAsyncContextManager[None]]
Modules = Iterable[ModuleType | str]


def container_lifespan(container: ResourceContainer, *, modules: Modules | Callable[[], Modules] = ()) -> Lifespan:
    """Return a lifespan for `CommandBus(lifespan=…)` that keeps a container's resources open while a worker runs commands.

    Before the first command, modules are wired and resources initialised; after the last, resources are shut down. Several workers may
    share it: the first opens them, the last closes them.

    Args:
        container: A dependency-injector container, or any object with `init_resources` and `shutdown_resources`; both may return an awaitable.
        modules: Those with `@inject`, or their names, to wire to the container, or a function that returns them at that time. None are
            needed if the container's own `wiring_config` names them, or if it was wired before.
    """
    return _SharedLifespan(container, modules).entered


class _SharedLifespan:
    """Resources that are open as long as any worker uses them."""

    def __init__(self, container: ResourceContainer, modules: Modules | Callable[[], Modules]) -> None:
        self._container = _outermost(container)
        self._modules = modules
        self._holders = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def entered(self) -> AsyncGenerator[None]:
        async with self._lock_of_loop():
            if self._holders == 0:
                await self._open()
            self._holders += 1
        try:
            yield
        finally:
            async with self._lock_of_loop():
                self._holders -= 1
                if self._holders == 0:
                    await close_resources(self._container)

    async def _open(self) -> None:
        if modules := list(self._modules() if callable(self._modules) else self._modules):
            wire: Callable[..., None] = getattr(self._container, "wire")  # noqa: B009 - only dependency-injector's containers have it
            wire(modules=modules)
        await open_resources(self._container)

    def _lock_of_loop(self) -> asyncio.Lock:
        """Return a lock of the running loop: in tests one container runs in several."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock


def _outermost(container: Any) -> Any:
    """Return the outermost container that this one is part of; itself if it is part of none."""
    while (holder := getattr(getattr(container, "parent", None), "parent", None)) is not None:
        container = holder
    return container


def _settings(config: Mapping[str, Any] | None) -> BusSettings:
    values: Any = config or {}
    return BusSettings(**values)


def _handler_modules(registry: HandlerRegistry) -> list[str]:
    return sorted({handler.module for handler in registry if handler.module})


def _bus(
    settings: BusSettings,
    registry: HandlerRegistry,
    middleware: Sequence[Middleware],
    lifespan: Lifespan,
    connections: ClientFactory | None,
) -> CommandBus:
    return CommandBus(settings=settings, registry=registry, middleware=middleware, lifespan=lifespan, clients=connections)


def _worker(bus: CommandBus, **options: Any) -> Worker:
    return bus.worker(**options)


class Container(containers.DeclarativeContainer):
    """Settings, connections, bus and worker of an application.

    Attributes:
        config: Values for `settings`, from a dictionary, YAML or elsewhere; the others come from the environment.
        settings: The `BusSettings`.
        registry: The `HandlerRegistry`, by default the one of `@handles`.
        middleware: A sequence of `Middleware`.
        connections: A `ClientFactory`, or None for the server that the settings name; `MemoryClients()` in tests.
        modules: Those to wire when a worker starts, by default where the registry's handlers are.
        lifespan: Keeps the resources of this container, or of the outermost one, open while a worker runs.
        bus: The `CommandBus`, one per process.
        worker: A new `Worker` of the bus at each call; takes what `CommandBus.worker` takes.
    """

    __self__ = providers.Self()
    config = providers.Configuration()
    settings = providers.Singleton(_settings, config)
    registry = providers.Object(default_registry)
    middleware: providers.Provider[Sequence[Middleware]] = providers.Object(())
    connections: providers.Provider[ClientFactory | None] = providers.Object(None)
    modules: providers.Provider[Modules] = providers.Callable(_handler_modules, registry)
    lifespan = providers.Singleton(container_lifespan, __self__, modules=modules.provider)
    bus = providers.Singleton(_bus, settings, registry, middleware, lifespan, connections)
    worker = providers.Factory(_worker, bus)

    def __new__(cls, **overriding_providers: Any) -> Self:
        """Create an instance whose `lifespan` refers to it. In a subclass the inherited `__self__` would refer to the base class."""
        container: Any = super().__new__(cls, **overriding_providers)
        for argument in container.lifespan.args:
            if isinstance(argument, providers.Self):
                argument.set_container(container)
        made: Self = container
        return made
