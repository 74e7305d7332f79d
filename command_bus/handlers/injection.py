"""The meeting point with dependency-injector. It is optional, so it is never imported here, only looked for among what is imported.

A program that uses a container has imported the library before it registers anything, so `sys.modules` shows it. The library's
silent traps are errors here, at start: a function whose markers were never wired would be handed the marker itself, and
`Closing[…]` of a resource that commands share would close it under the others.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from command_bus.errors import RegistrationError
from command_bus.handlers.handler import Handler
from command_bus.handlers.signatures import layers, markers, return_type


class ResourceContainer(Protocol):
    """The part of a container that is needed. A dependency-injector container has it, and anything else with these two methods."""

    def init_resources(self) -> Any:
        """Open all resources; may return an awaitable."""

    def shutdown_resources(self) -> Any:
        """Close all resources; may return an awaitable."""


def is_provider(value: Any) -> bool:
    """Return whether this is a dependency-injector provider."""
    providers = sys.modules.get("dependency_injector.providers")
    return providers is not None and isinstance(value, providers.Provider)


def provided_type(provider: Any) -> Any:
    """Return the type of what a provider provides, as a class or a return annotation; None if it is not known."""
    if inspect.isclass(required := getattr(provider, "instance_of", None)):
        return required
    provides: Any = getattr(provider, "provides", None)
    if is_provider(provides):  # an attribute or a delegate of another provider
        return None
    if callable(provides):
        return provides if inspect.isclass(provides) else return_type(provides)
    return None if provides is None else cast("object", provides).__class__


async def open_resources(container: ResourceContainer) -> None:
    """Initialise the container's resources, synchronous and asynchronous. If one fails, close those already open.

    A `ContextLocalResource` is left out: each command opens its own. Opened here, it would be handed down to all of them, and the
    first command to end would close it under the others.
    """
    try:
        init: Callable[..., Any] = container.init_resources
        opening = init(**_shared_only(container))
        if inspect.isawaitable(opening):  # None when no resource is asynchronous
            await opening
    except BaseException:
        await close_resources(container)
        raise


async def close_resources(container: ResourceContainer) -> None:
    """Shut the container's resources down; safe to repeat."""
    shutdown: Callable[..., Any] = container.shutdown_resources
    closing = shutdown(**_shared_only(container))
    if inspect.isawaitable(closing):
        await closing


def _shared_only(container: ResourceContainer) -> dict[str, Any]:
    """Return the argument that leaves context-local resources out; other libraries' containers need none."""
    containers = sys.modules.get("dependency_injector.containers")
    if containers is None or not isinstance(container, containers.Container):
        return {}
    return {"resource_type": sys.modules["dependency_injector.providers"].Resource}


def check_wired(handlers: Iterable[Handler]) -> None:
    """See that every injected parameter of every handler is wired to a container. Call it when wiring and resources are done.

    From then on `Closing[…]` of a `ContextLocalResource` closes what belongs to the command, and not also, as the library has it,
    the shared resources that it is made of: a session, and not its pool.

    Raises:
        RegistrationError: A parameter would be handed the marker itself, an awaitable in a thread, or a resource that the handler
            would close under others; the message names function and parameter.
    """
    wiring = sys.modules.get("dependency_injector.wiring")
    if wiring is None:
        return
    for handler in handlers:
        for function in handler.callables:
            for parameter, marker in markers(function).items():
                _check_parameter(wiring, handler, function, parameter, marker)


def _check_parameter(wiring: Any, handler: Handler, function: Callable[..., Any], parameter: str, marker: Any) -> None:
    place = f"{handler.name}: parameter {parameter!r} is {type(marker).__name__}[…]"
    patched = _patched(wiring, function)
    if patched is None:
        raise RegistrationError(f"{place}, but nothing injects it: put @inject on the function, below @handles")
    provider = patched.injections.get(parameter)
    if provider is None:
        module = getattr(patched.original, "__module__", "the module")
        raise RegistrationError(f"{place}, but not wired: container.wire(modules=[{module!r}]) before the worker starts")
    if parameter in patched.closing:
        _check_closing(place, provider, patched)
    else:
        _check_left_open(place, provider)
    if not handler.is_async and provider.is_async_mode_enabled():
        raise RegistrationError(f"{place} of an asynchronous provider, but the handler runs in a thread: make it `async def`")


def _check_closing(place: str, provider: Any, patched: Any) -> None:
    shared_kind, local_kind = _resource_kinds()
    parts = [provider, *provider.traverse()]
    shared = [part for part in parts if isinstance(part, shared_kind)]
    if not shared:
        return
    if shared[0] is provider or not any(isinstance(part, local_kind) for part in parts):
        raise RegistrationError(
            f"{place} of a Resource that all commands share: the first to end would close it under the others. Use Provide[…] "
            "alone; for one per command make it a ContextLocalResource, or include a function that makes the handlers' object "
            "per command as a context manager"
        )
    for part in shared:
        patched.closing.pop(str(id(part)), None)


def _check_left_open(place: str, provider: Any) -> None:
    _, local_kind = _resource_kinds()
    if isinstance(provider, local_kind):
        raise RegistrationError(f"{place} of a ContextLocalResource, which nothing would close: write Closing[Provide[…]]")


def _resource_kinds() -> tuple[type, tuple[type, ...]]:
    """Return the classes of resources that commands share, and of those that each has for itself (since dependency-injector 4.49)."""
    providers = sys.modules["dependency_injector.providers"]
    local = getattr(providers, "ContextLocalResource", None)
    return providers.Resource, () if local is None else (local,)


def _patched(wiring: Any, function: Callable[..., Any]) -> Any:
    """Return the record that `@inject` keeps of a function; the library has no public way to ask whether a function is wired."""
    written = function.__init__ if inspect.isclass(function) else function
    for layer in layers(written):
        if (found := wiring._patched_registry.get_callable(layer)) is not None:  # noqa: SLF001 - see above
            return found
    return None
