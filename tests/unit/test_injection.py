"""dependency-injector: providers as sources of objects, resources, and its silent traps turned into errors at start."""

# mypy: disable-error-code="empty-body"
# Most of these functions are only registered, never called.

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest

pytest.importorskip("dependency_injector")

from dependency_injector import containers, providers
from dependency_injector.wiring import Closing, Provide, Provider, inject

from command_bus.errors import RegistrationError
from command_bus.handlers.injection import check_wired, close_resources, is_provider, open_resources, provided_type
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.context import CommandContext
from command_bus.messages.message import Command, EntityId


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int = 5


class Withdraw(Command[int], entity="account"):
    account_id: EntityId


DEPOSIT = Deposit(account_id="a-1")
WITHDRAW = Withdraw(account_id="a-1")
journal: list[str] = []
marks = HandlerRegistry()


class Service:
    def __init__(self, factor: int = 2) -> None:
        self.factor = factor


async def async_pool() -> AsyncIterator[Service]:
    journal.append("pool opened")
    yield Service(factor=3)
    journal.append("pool closed")


def sync_pool() -> Iterator[Service]:
    journal.append("sync pool opened")
    yield Service(factor=4)
    journal.append("sync pool closed")


async def broken_pool() -> AsyncIterator[Service]:
    await asyncio.sleep(0)
    raise ConnectionError
    yield Service()


class Accounts:
    def __init__(self, service: Service) -> None:
        self.service = service

    @marks.handles(Deposit)
    async def deposit(self, command: Deposit) -> int:
        return command.amount * self.service.factor

    @marks.handles(Withdraw)
    def withdraw(self, command: Withdraw) -> int:
        return self.service.factor


@asynccontextmanager
async def accounts_session(service: Service) -> AsyncGenerator[Accounts]:
    journal.append("session opened")
    yield Accounts(service)
    journal.append("session closed")


class Container(containers.DeclarativeContainer):
    service = providers.Factory(Service)
    pool = providers.Resource(async_pool)
    blocking_pool = providers.Resource(sync_pool)
    per_context = providers.ContextLocalResource(async_pool)
    uses_pool = providers.Factory(Accounts, service=pool)
    accounts = providers.Factory(Accounts, service=service)
    session = providers.Callable(accounts_session, service=service)


@pytest.fixture
def container() -> Iterator[Container]:
    container = Container()
    journal.clear()
    yield container
    container.unwire()


@pytest.fixture
def registry() -> HandlerRegistry:
    return HandlerRegistry()


async def run(registry: HandlerRegistry, command: Any) -> Any:
    handler = registry.lookup(type(command).spec().name)
    assert handler is not None
    if handler.is_async:
        return await handler.invoke(command, CommandContext())
    if handler.scope is None:
        return await asyncio.to_thread(handler.invoke, command, CommandContext())
    async with handler.scope() as invoke:
        return await asyncio.to_thread(invoke, command, CommandContext())


def this_module() -> ModuleType:
    return sys.modules[__name__]


class TestInjectedFunctions:
    async def test_they_are_handlers_with_or_without_context(self, registry: HandlerRegistry, container: Container) -> None:
        @registry.handles(Deposit)
        @inject
        async def deposit(command: Deposit, context: CommandContext, service: Service = Provide[Container.service]) -> int:
            return command.amount * service.factor + context.attempt

        @registry.handles(Withdraw)
        @inject
        def withdraw(command: Withdraw, *, service: Service = Provide[Container.service]) -> int:
            return service.factor

        container.wire(modules=[this_module()])
        check_wired(registry)
        handler = registry.lookup("Deposit")
        assert handler is not None
        assert handler.invoke is deposit
        assert await run(registry, DEPOSIT) == 11
        assert await run(registry, WITHDRAW) == 2

    async def test_a_second_parameter_that_is_injected_is_not_the_context(
        self, registry: HandlerRegistry, container: Container
    ) -> None:
        @registry.handles(Deposit)
        @inject
        async def deposit(command: Deposit, service: Service = Provide[Container.service]) -> int:
            return service.factor

        container.wire(modules=[this_module()])
        check_wired(registry)
        with container.service.override(providers.Object(Service(factor=7))):
            assert await run(registry, DEPOSIT) == 7
        assert await run(registry, DEPOSIT) == 2

    async def test_markers_in_annotations(self, registry: HandlerRegistry, container: Container) -> None:
        def deposit(command: Any, service: Any) -> int:
            return int(service.factor)

        deposit.__annotations__["service"] = Annotated[Service, Provide[Container.service]]
        registry.handles(Deposit)(inject(deposit))
        with pytest.raises(RegistrationError, match="'service'"):
            check_wired(registry)
        container.wire(modules=[this_module()])
        check_wired(registry)
        assert await run(registry, DEPOSIT) == 2

    def test_an_injected_first_parameter_is_refused(self, registry: HandlerRegistry) -> None:
        def deposit(service: Service = Provide[Container.service], command: Deposit = DEPOSIT) -> int: ...

        with pytest.raises(RegistrationError, match="first parameter 'service' is injected"):
            registry.handles(Deposit)(deposit)

    async def test_a_provider_marker(self, registry: HandlerRegistry, container: Container) -> None:
        @registry.handles(Deposit)
        @inject
        async def deposit(command: Deposit, make: Any = Provider[Container.service]) -> int:
            return int(make(factor=9).factor)

        container.wire(modules=[this_module()])
        check_wired(registry)
        assert await run(registry, DEPOSIT) == 9


class TestCheckWired:
    def test_a_module_that_was_not_wired(self, registry: HandlerRegistry) -> None:
        @registry.handles(Deposit)
        @inject
        async def deposit(command: Deposit, service: Service = Provide[Container.service]) -> int: ...

        with pytest.raises(
            RegistrationError, match=r"deposit: parameter 'service' is Provide.*not wired.*wire\(modules=\['.*test_injection"
        ):
            check_wired(registry)

    def test_a_function_that_nothing_injects(self, registry: HandlerRegistry, container: Container) -> None:
        @registry.handles(Deposit)
        async def deposit(command: Deposit, service: Service = Provide[Container.service]) -> int: ...

        container.wire(modules=[this_module()])
        with pytest.raises(RegistrationError, match="put @inject on the function, below @handles"):
            check_wired(registry)

    def test_decorators_in_the_wrong_order(self, registry: HandlerRegistry, container: Container) -> None:
        @inject
        @registry.handles(Deposit)
        async def deposit(command: Deposit, service: Service = Provide[Container.service]) -> int: ...

        container.wire(modules=[this_module()])
        with pytest.raises(RegistrationError, match="below @handles"):
            check_wired(registry)

    def test_a_name_that_the_container_lacks(self, registry: HandlerRegistry, container: Container) -> None:
        @registry.handles(Deposit)
        @inject
        async def deposit(command: Deposit, service: Service = Provide["no_such"]) -> int: ...

        container.wire(modules=[this_module()])
        with pytest.raises(RegistrationError, match="'service'"):
            check_wired(registry)

    def test_methods_are_checked_too(self, registry: HandlerRegistry, container: Container) -> None:
        class Injected:
            @registry.handles(Deposit)
            @inject
            async def deposit(self, command: Deposit, service: Service = Provide[Container.service]) -> int: ...

        for source in (Injected(), Injected):
            own = HandlerRegistry()
            own.include(source)
            with pytest.raises(RegistrationError, match=r"Injected\.deposit: parameter 'service'"):
                check_wired(own)
            container.wire(modules=[this_module()])
            check_wired(own)
            container.unwire()

    def test_what_makes_an_object_is_checked_too(self, registry: HandlerRegistry, container: Container) -> None:
        class Injected(Accounts):
            @inject
            def __init__(self, service: Service = Provide[Container.service]) -> None: ...

        @inject
        def made(service: Service = Provide[Container.service]) -> Accounts: ...

        for source in (Injected, made):
            own = HandlerRegistry()
            own.include(source)
            with pytest.raises(RegistrationError, match="parameter 'service' is Provide"):
                check_wired(own)
            container.wire(modules=[this_module()])
            check_wired(own)
            container.unwire()

    @pytest.mark.parametrize("shared", [Container.pool, Container.blocking_pool, Container.uses_pool])
    def test_closing_what_others_share_is_refused(self, registry: HandlerRegistry, container: Container, shared: Any) -> None:
        @registry.handles(Deposit)
        @inject
        async def deposit(command: Deposit, service: Service = Closing[Provide[shared]]) -> int: ...

        container.wire(modules=[this_module()])
        with pytest.raises(RegistrationError, match=r"'service' is Closing.*all commands share"):
            check_wired(registry)

    async def test_closing_what_belongs_to_the_command_is_fine(self, registry: HandlerRegistry, container: Container) -> None:
        @registry.handles(Deposit)
        @inject
        async def deposit(command: Deposit, service: Service = Closing[Provide[Container.per_context]]) -> int:
            journal.append("handled")
            return service.factor

        container.wire(modules=[this_module()])
        check_wired(registry)
        assert await asyncio.create_task(run(registry, DEPOSIT)) == 3
        assert journal == ["pool opened", "handled", "pool closed"]

    async def test_an_asynchronous_provider_for_a_sync_handler_is_refused(
        self, registry: HandlerRegistry, container: Container
    ) -> None:
        @registry.handles(Deposit)
        @inject
        def deposit(command: Deposit, service: Service = Provide[Container.pool]) -> int: ...

        container.wire(modules=[this_module()])
        await open_resources(container)
        try:
            with pytest.raises(RegistrationError, match="asynchronous provider, but the handler runs in a thread"):
                check_wired(registry)
        finally:
            await close_resources(container)

    async def test_but_an_async_handler_awaits_it(self, registry: HandlerRegistry, container: Container) -> None:
        @registry.handles(Deposit)
        @inject
        async def deposit(command: Deposit, service: Service = Provide[Container.pool]) -> int:
            return service.factor

        container.wire(modules=[this_module()])
        await open_resources(container)
        try:
            check_wired(registry)
            assert await run(registry, DEPOSIT) == 3
        finally:
            await close_resources(container)

    def test_a_marker_that_the_library_does_not_see(self, registry: HandlerRegistry) -> None:
        class Injected(Accounts):
            def __init__(self, service: Annotated[Service, Provide[Container.service]]) -> None: ...  # text: nothing is injected

        registry.include(Injected)
        with pytest.raises(RegistrationError, match="nothing injects it"):
            check_wired(registry)

    def test_handlers_without_markers_are_fine(self, registry: HandlerRegistry) -> None:
        registry.handles(Deposit)(lambda command: 1)
        registry.handles(Withdraw)(max_like)
        check_wired(registry)


def max_like(command: Withdraw, *rest: int) -> int:
    return 1


class TestProviders:
    @pytest.mark.parametrize(
        ("provider", "given"),
        [
            (providers.Factory(Accounts), Accounts),
            (providers.Singleton(Accounts), Accounts),
            (providers.Dependency(instance_of=Accounts), Accounts),
            (providers.Object(Accounts(Service())), Accounts),
            (providers.Resource(async_pool), AsyncIterator[Service]),
            (providers.Callable(accounts_session), AsyncGenerator[Accounts]),
            (providers.Callable(lambda: 1), Any),
        ],
    )
    def test_they_are_recognised_and_tell_what_they_give(self, provider: Any, given: Any) -> None:
        assert is_provider(provider)
        assert provided_type(provider) == given

    def test_an_attribute_of_what_another_provides_is_of_unknown_type(self, registry: HandlerRegistry) -> None:
        attribute = providers.Factory(Accounts).provided.service
        assert is_provider(attribute)
        assert provided_type(attribute) is None
        with pytest.raises(RegistrationError, match="of=TheClass"):
            registry.include(attribute)

    def test_nothing_else_is_one(self) -> None:
        assert not any(is_provider(value) for value in (Accounts, Accounts(Service()), None, len, Container))

    async def test_a_factory_gives_an_object_per_command(self, registry: HandlerRegistry, container: Container) -> None:
        registry.include(container.accounts)
        check_wired(registry)
        assert await run(registry, DEPOSIT) == 10
        assert await run(registry, WITHDRAW) == 2
        with container.service.override(providers.Object(Service(factor=7))):
            assert await run(registry, DEPOSIT) == 35
        registry.include(container.accounts)

    async def test_a_context_manager_that_a_provider_gives_is_a_scope_per_command(
        self, registry: HandlerRegistry, container: Container
    ) -> None:
        registry.include(container.session)
        assert await run(registry, DEPOSIT) == 10
        assert journal == ["session opened", "session closed"]
        assert await run(registry, WITHDRAW) == 2
        assert journal == ["session opened", "session closed"] * 2

    async def test_concurrent_commands_have_sessions_of_their_own(self, registry: HandlerRegistry, container: Container) -> None:
        registry.include(container.session)
        assert await asyncio.gather(*(run(registry, DEPOSIT) for _ in range(20))) == [10] * 20
        assert journal.count("session opened") == journal.count("session closed") == 20

    async def test_a_provider_of_asynchronous_things(self, registry: HandlerRegistry, container: Container) -> None:
        registry.include(container.uses_pool)
        await open_resources(container)
        try:
            assert await run(registry, DEPOSIT) == 15
            assert await run(registry, WITHDRAW) == 3
        finally:
            await close_resources(container)

    def test_a_provider_that_does_not_tell_its_class(self, registry: HandlerRegistry) -> None:
        provider = providers.Callable(lambda: Accounts(Service()))
        with pytest.raises(RegistrationError, match="of=TheClass"):
            registry.include(provider)
        registry.include(provider, of=Accounts)
        assert len(registry) == 2


class TestResources:
    async def test_both_kinds_are_opened_and_closed(self) -> None:
        class Both(containers.DeclarativeContainer):
            pool = providers.Resource(async_pool)
            blocking_pool = providers.Resource(sync_pool)

        journal.clear()
        container = Both()
        await open_resources(container)
        assert sorted(journal) == ["pool opened", "sync pool opened"]
        await close_resources(container)
        await close_resources(container)
        assert sorted(journal) == ["pool closed", "pool opened", "sync pool closed", "sync pool opened"]

    async def test_without_asynchronous_resources_nothing_is_awaited(self) -> None:
        class Plain(containers.DeclarativeContainer):
            blocking_pool = providers.Resource(sync_pool)

        journal.clear()
        container = Plain()
        await open_resources(container)
        await close_resources(container)
        assert journal == ["sync pool opened", "sync pool closed"]

    async def test_an_empty_container(self) -> None:
        container = containers.DynamicContainer()
        await open_resources(container)
        await close_resources(container)

    async def test_what_was_opened_before_a_failure_is_closed(self) -> None:
        class Broken(containers.DeclarativeContainer):
            blocking_pool = providers.Resource(sync_pool)
            broken = providers.Resource(broken_pool)

        journal.clear()
        with pytest.raises(ConnectionError):
            await open_resources(Broken())
        assert journal == ["sync pool opened", "sync pool closed"]


def test_the_library_is_not_imported_for_any_of_this() -> None:
    code = (
        "import sys; from command_bus.handlers.registry import HandlerRegistry; from command_bus.messages.message import Command\n"
        "from command_bus.handlers.injection import check_wired, is_provider\n"
        "class D(Command[int]): ...\n"
        "registry = HandlerRegistry(); registry.handles(D)(lambda command: 1); check_wired(registry); assert not is_provider(D)\n"
        "assert not any(name.startswith('dependency_injector') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, cwd=Path(__file__).parents[2])
