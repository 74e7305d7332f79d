"""Registering functions, marking methods, including objects and what makes them, and refusing what clashes."""

# mypy: disable-error-code="empty-body"
# Most of these functions are only registered, never called.

from __future__ import annotations

import asyncio
import functools
import importlib
import sqlite3
import sys
import textwrap
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from command_bus.errors import RegistrationError
from command_bus.handlers.handler import Handler
from command_bus.handlers.registry import HandlerRegistry, default_registry, handles
from command_bus.messages.context import CommandContext
from command_bus.messages.message import Command, EntityId, Query


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int = 5


class Withdraw(Command[int], entity="account", name="account.withdraw"):
    account_id: EntityId
    amount: int = 3


class Balance(Query[int], entity="account"):
    account_id: EntityId


DEPOSIT = Deposit(account_id="a-1")
WITHDRAW = Withdraw(account_id="a-1")


@pytest.fixture
def registry() -> HandlerRegistry:
    return HandlerRegistry()


@pytest.fixture
def default() -> Iterator[HandlerRegistry]:
    """The default registry, empty, and afterwards as it was."""
    before = HandlerRegistry()
    before.include(default_registry)
    default_registry.clear()
    yield default_registry
    default_registry.clear()
    default_registry.include(before)


async def run(registry: HandlerRegistry, command: Any, context: CommandContext | None = None) -> Any:
    """Call the handler as a worker does: on the loop, or in a thread, within its scope if it has one."""
    handler = registry.lookup(type(command).spec().name)
    assert handler is not None
    if handler.is_async:
        assert handler.scope is None
        return await handler.invoke(command, context)
    if handler.scope is None:
        return await asyncio.to_thread(handler.invoke, command, context)
    async with handler.scope() as invoke:
        return await asyncio.to_thread(invoke, command, context)


class TestFunctions:
    def test_the_function_is_returned_untouched(self, registry: HandlerRegistry) -> None:
        async def deposit(command: Deposit) -> int:
            return command.amount

        before = dict(vars(deposit))
        assert registry.handles(Deposit)(deposit) is deposit
        assert vars(deposit) == before
        assert asyncio.run(deposit(DEPOSIT)) == 5

    def test_a_handler_is_found_by_wire_name(self, registry: HandlerRegistry) -> None:
        @registry.handles(Withdraw)
        def withdraw(command: Withdraw) -> int:
            return command.amount

        handler = registry.lookup("account.withdraw")
        assert isinstance(handler, Handler)
        assert (handler.message_type, handler.name.rpartition(".")[2]) == (Withdraw, "withdraw")
        assert registry.lookup("Withdraw") is None
        assert "account.withdraw" in registry
        assert Withdraw in registry
        assert Deposit not in registry
        assert [*registry] == [handler]
        assert len(registry) == 1
        assert registry.names() == ("account.withdraw",)
        assert registry.messages() == (Withdraw,)
        assert repr(registry) == "HandlerRegistry(account.withdraw)"

    def test_an_empty_registry_is_still_a_registry(self, registry: HandlerRegistry) -> None:
        assert len(registry) == 0
        assert registry or False

    async def test_one_function_may_handle_several_messages(self, registry: HandlerRegistry) -> None:
        @registry.handles(Deposit)
        @registry.handles(Withdraw)
        async def change(command: Deposit | Withdraw) -> int:
            return command.amount

        assert registry.names() == ("account.withdraw", "Deposit")
        assert await run(registry, DEPOSIT) == 5
        assert await run(registry, WITHDRAW) == 3

    def test_a_second_handler_is_refused_and_both_are_named(self, registry: HandlerRegistry) -> None:
        @registry.handles(Deposit)
        async def first(command: Deposit) -> int: ...

        async def second(command: Deposit) -> int: ...

        with pytest.raises(RegistrationError, match=r"first already.*second cannot"):
            registry.handles(Deposit)(second)
        registry.handles(Deposit)(first)
        assert len(registry) == 1

    def test_two_classes_with_one_wire_name_are_refused(self, registry: HandlerRegistry) -> None:
        class Other(Command[int], name="Deposit"): ...

        registry.handles(Deposit)
        registry.declare(Deposit)
        for register in (registry.handles, registry.declare):
            with pytest.raises(RegistrationError, match=r"Deposit and .*Other have one wire name, 'Deposit'"):
                register(Other)

    @pytest.mark.parametrize("wrong", ["Deposit", 5, None, int, Command, Command[int], lambda command: 1])
    def test_only_messages_are_handled(self, registry: HandlerRegistry, wrong: Any) -> None:
        with pytest.raises(RegistrationError):
            registry.handles(wrong)
        with pytest.raises(RegistrationError):
            registry.declare(wrong)

    def test_what_cannot_be_a_handler_leaves_nothing_behind(self, registry: HandlerRegistry) -> None:
        with pytest.raises(RegistrationError, match="returns str"):

            @registry.handles(Deposit)  # type: ignore[arg-type]  # the run-time check is the test
            async def deposit(command: Deposit) -> str: ...

        assert len(registry) == 0
        assert registry.messages() == ()

    def test_the_module_level_decorator_fills_the_default_registry(self, default: HandlerRegistry) -> None:
        @handles(Deposit)
        async def deposit(command: Deposit) -> int: ...

        assert Deposit in default_registry
        assert default is default_registry

    async def test_a_bound_method_is_registered_at_once(self, registry: HandlerRegistry) -> None:
        class Accounts:
            async def deposit(self, command: Deposit) -> int:
                return 7

        registry.handles(Deposit)(Accounts().deposit)
        assert await run(registry, DEPOSIT) == 7


class TestDeclarations:
    def test_declared_messages_without_a_handler_are_named(self, registry: HandlerRegistry) -> None:
        registry.declare(Deposit, Withdraw)
        registry.handles(Deposit)(lambda command: 1)
        assert registry.unhandled() == ("account.withdraw",)
        assert registry.names() == ("Deposit",)
        assert registry.messages() == (Deposit, Withdraw)
        assert "account.withdraw" not in registry

    def test_a_method_nobody_included_counts_as_unhandled(self, registry: HandlerRegistry) -> None:
        class Accounts:
            @registry.handles(Deposit)
            async def deposit(self, command: Deposit) -> int: ...

        assert registry.unhandled() == ("Deposit",)
        registry.include(Accounts())
        assert registry.unhandled() == ()

    def test_clear_forgets_all(self, registry: HandlerRegistry) -> None:
        registry.handles(Deposit)(lambda command: 1)
        registry.clear()
        assert (len(registry), registry.messages()) == (0, ())


marks = HandlerRegistry()


class Accounts:
    """Methods of every kind, marked."""

    made = 0

    def __init__(self, bonus: int = 0) -> None:
        type(self).made += 1
        self.bonus = bonus

    @marks.handles(Deposit)
    async def deposit(self, command: Deposit) -> int:
        return command.amount + self.bonus

    @marks.handles(Withdraw)
    def withdraw(self, command: Withdraw, context: CommandContext) -> int:
        return context.attempt + self.bonus


class TestInstances:
    async def test_methods_are_bound_to_the_instance(self, registry: HandlerRegistry) -> None:
        registry.include(Accounts(bonus=100))
        assert await run(registry, DEPOSIT) == 105
        assert await run(registry, WITHDRAW, CommandContext()) == 101

    async def test_a_marked_method_stays_a_method(self) -> None:
        assert await Accounts(bonus=1).deposit(DEPOSIT) == 6

    async def test_static_and_class_methods(self, registry: HandlerRegistry) -> None:
        class Kinds:
            @staticmethod
            @registry.handles(Deposit)
            def deposit(command: Deposit) -> int:
                return 1

            @classmethod
            @registry.handles(Withdraw)
            async def withdraw(cls, command: Withdraw, context: CommandContext) -> int:
                return 2

            @registry.handles(Balance)
            @staticmethod
            async def balance(command: Balance) -> int:
                return 3

        for source in (Kinds(), Kinds):
            registry.clear()
            registry.include(source)
            assert await run(registry, DEPOSIT) == 1
            assert await run(registry, WITHDRAW, CommandContext()) == 2
            assert await run(registry, Balance(account_id=1)) == 3

    async def test_marks_survive_other_decorators(self, registry: HandlerRegistry) -> None:
        def counted(function: Any) -> Any:
            @functools.wraps(function)
            async def wrapper(self: Any, command: Any) -> Any:
                return await function(self, command) + 1000

            return wrapper

        class Counted:
            @counted
            @registry.handles(Deposit)
            async def deposit(self, command: Deposit) -> int:
                return command.amount

        registry.include(Counted())
        assert await run(registry, DEPOSIT) == 1005

    async def test_an_override_keeps_the_mark_of_what_it_overrides(self, registry: HandlerRegistry) -> None:
        class Better(Accounts):
            async def deposit(self, command: Deposit) -> int:
                return -1

            withdraw = None  # type: ignore[assignment]  # how a subclass says that it does not

        registry.include(Better())
        assert registry.names() == ("Deposit",)
        assert await run(registry, DEPOSIT) == -1

    async def test_one_method_may_handle_several_messages(self, registry: HandlerRegistry) -> None:
        class Both:
            @registry.handles(Deposit)
            @registry.handles(Withdraw)
            async def change(self, command: Deposit | Withdraw) -> int:
                return command.amount

        registry.include(Both())
        assert await run(registry, DEPOSIT) + await run(registry, WITHDRAW) == 8

    def test_a_wrong_method_is_found_when_it_is_included(self, registry: HandlerRegistry) -> None:
        class Wrong:
            @registry.handles(Deposit)  # type: ignore[arg-type]  # the run-time check is the test
            async def deposit(self, command: Deposit) -> str: ...

        for source in (Wrong(), Wrong):
            with pytest.raises(RegistrationError, match=r"Wrong\.deposit returns str"):
                registry.include(source)

    def test_including_the_same_again_changes_nothing(self, registry: HandlerRegistry) -> None:
        accounts = Accounts()
        registry.include(accounts)
        registry.include(accounts)
        with pytest.raises(RegistrationError, match="already"):
            registry.include(Accounts())

    @pytest.mark.parametrize("wrong", [5, None, object(), int, dict, lambda: 5, "".join, object])
    def test_what_has_no_handlers_is_refused(self, registry: HandlerRegistry, wrong: Any) -> None:
        with pytest.raises(RegistrationError):
            registry.include(wrong)


class Journal(list[str]):
    """What happened to the provided objects, and in which thread."""

    def note(self, what: str) -> None:
        self.append(what if threading.current_thread() is threading.main_thread() else f"{what} in a thread")


class TestObjectPerCommand:
    async def test_a_class_gives_a_new_object_for_each_command(self, registry: HandlerRegistry) -> None:
        registry.include(Accounts)
        before = Accounts.made
        assert await run(registry, DEPOSIT) == 5
        assert await run(registry, DEPOSIT) == 5
        assert await run(registry, WITHDRAW, CommandContext(attempt=2)) == 2
        assert Accounts.made == before + 3
        registry.include(Accounts)

    async def test_a_function_gives_it_and_its_annotation_tells_the_class(self, registry: HandlerRegistry) -> None:
        def accounts() -> Accounts:
            return Accounts(bonus=10)

        registry.include(accounts)
        assert await run(registry, DEPOSIT) == 15
        assert await run(registry, WITHDRAW, CommandContext()) == 11

    async def test_or_the_argument_does(self, registry: HandlerRegistry) -> None:
        registry.include(lambda: Accounts(bonus=10), of=Accounts)
        assert await run(registry, DEPOSIT) == 15

    async def test_an_async_function_gives_it(self, registry: HandlerRegistry) -> None:
        async def accounts() -> Accounts:
            await asyncio.sleep(0)
            return Accounts(bonus=10)

        registry.include(accounts)
        assert await run(registry, DEPOSIT) == 15
        assert await run(registry, WITHDRAW, CommandContext()) == 11

    async def test_a_function_that_returns_a_coroutine_gives_it(self, registry: HandlerRegistry) -> None:
        async def later() -> Accounts:
            return Accounts(bonus=10)

        def accounts() -> Coroutine[None, None, Accounts]:
            return later()

        registry.include(accounts)
        assert await run(registry, DEPOSIT) == 15
        assert await run(registry, WITHDRAW, CommandContext()) == 11

    @pytest.mark.parametrize("decorated", [True, False])
    async def test_an_async_context_manager_is_held_open_for_the_command(
        self, registry: HandlerRegistry, decorated: bool
    ) -> None:
        journal = Journal()

        async def accounts() -> AsyncGenerator[Accounts]:
            journal.note("open")
            try:
                yield Accounts(bonus=10)
            except ValueError:
                journal.note("rolled back")
                raise
            finally:
                await asyncio.sleep(0)
                journal.note("closed")

        registry.include(asynccontextmanager(accounts) if decorated else accounts)
        assert await run(registry, DEPOSIT) == 15
        assert journal == ["open", "closed"]
        assert await run(registry, WITHDRAW, CommandContext()) == 11
        assert journal == ["open", "closed"] * 2

    @pytest.mark.parametrize("decorated", [True, False])
    async def test_a_context_manager_of_a_sync_method_lives_in_its_thread(
        self, registry: HandlerRegistry, decorated: bool
    ) -> None:
        journal = Journal()

        def accounts() -> Generator[Accounts]:
            journal.note("open")
            yield Accounts(bonus=10)
            journal.note("closed")

        registry.include(contextmanager(accounts) if decorated else accounts)
        assert await run(registry, DEPOSIT) == 15
        assert journal == ["open", "closed"]
        assert await run(registry, WITHDRAW, CommandContext()) == 11
        assert journal[2:] == ["open in a thread", "closed in a thread"]

    async def test_a_session_that_must_not_change_threads(self, registry: HandlerRegistry) -> None:
        class Ledger:
            def __init__(self) -> None:
                self.database = sqlite3.connect(":memory:")

            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_: object) -> None:
                self.database.close()

            @registry.handles(Deposit)
            def deposit(self, command: Deposit) -> int:
                return int(self.database.execute("select ? + 1", (command.amount,)).fetchone()[0])

        registry.include(Ledger)
        assert await run(registry, DEPOSIT) == 6

    async def test_what_entering_gives_is_what_handles(self, registry: HandlerRegistry) -> None:
        class Opener:
            async def __aenter__(self) -> Accounts:
                return Accounts(bonus=20)

            async def __aexit__(self, *_: object) -> None: ...

        registry.include(Opener, of=Accounts)
        assert await run(registry, DEPOSIT) == 25
        assert await run(registry, WITHDRAW, CommandContext()) == 21

    async def test_an_object_of_both_kinds_is_entered_as_its_method_is(self, registry: HandlerRegistry) -> None:
        journal = Journal()

        class Both(Accounts):
            def __enter__(self) -> Self:
                journal.note("sync")
                return self

            async def __aenter__(self) -> Self:
                journal.note("async")
                return self

            def __exit__(self, *_: object) -> None: ...

            async def __aexit__(self, *_: object) -> None: ...

        async def both() -> Both:
            return Both()

        for source in (Both, both):
            registry.clear()
            journal.clear()
            registry.include(source, of=Both)
            await run(registry, DEPOSIT)
            await run(registry, WITHDRAW, CommandContext())
            assert journal == ["async", "sync in a thread"]

    @pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError])
    async def test_the_scope_sees_how_the_command_ended(self, registry: HandlerRegistry, kind: type[BaseException]) -> None:
        journal = Journal()

        class Failing:
            async def __aenter__(self) -> Self:
                return self

            async def __aexit__(self, error_type: type[BaseException] | None, *_: object) -> None:
                journal.note(error_type.__name__ if error_type else "committed")

            @registry.handles(Deposit)
            async def deposit(self, command: Deposit) -> int:
                raise kind

            @registry.handles(Withdraw)
            def withdraw(self, command: Withdraw) -> int:
                raise ValueError

        registry.include(Failing)
        with pytest.raises(kind):
            await run(registry, DEPOSIT)
        with pytest.raises(ValueError):
            await run(registry, WITHDRAW)
        assert journal == [kind.__name__, "ValueError"]

    async def test_a_method_that_wants_the_context_by_keyword(self, registry: HandlerRegistry) -> None:
        class Keyword:
            @registry.handles(Deposit)
            async def deposit(self, command: Deposit, *, context: CommandContext) -> int:
                return context.attempt

        registry.include(Keyword)
        assert await run(registry, DEPOSIT, CommandContext(attempt=4)) == 4

    async def test_without_its_scope_a_sync_method_of_an_async_object_says_so(self, registry: HandlerRegistry) -> None:
        async def accounts() -> Accounts:
            return Accounts()

        @asynccontextmanager
        async def managed() -> AsyncGenerator[Accounts]:
            yield Accounts()

        for source in (managed, accounts):
            other = HandlerRegistry()
            other.include(source)
            handler = other.lookup("account.withdraw")
            assert handler is not None
            assert handler.scope is not None
            if source is managed:
                with pytest.raises(RegistrationError, match="made asynchronously"):
                    handler.invoke(WITHDRAW, CommandContext())

    async def test_a_sync_method_that_returns_an_awaitable_says_so(self, registry: HandlerRegistry) -> None:
        class Sly:
            @registry.handles(Deposit)
            def deposit(self, command: Deposit) -> Any:
                return Accounts().deposit(command)

        registry.include(Sly)
        with pytest.raises(RegistrationError, match="make it `async def`"):
            await run(registry, DEPOSIT)

    def test_a_class_that_needs_arguments_is_refused(self, registry: HandlerRegistry) -> None:
        class Needy(Accounts):
            def __init__(self, session: object) -> None: ...

        def needy(session: object) -> Accounts: ...

        for source in (Needy, needy):
            with pytest.raises(RegistrationError, match=r"needs 'session'"):
                registry.include(source)

    def test_a_function_that_does_not_tell_its_class_is_refused(self, registry: HandlerRegistry) -> None:
        def untold(): ...
        def anything() -> Any: ...

        for source in (untold, anything):
            with pytest.raises(RegistrationError, match="of=TheClass"):
                registry.include(source)

    def test_two_sources_for_one_message_are_refused(self, registry: HandlerRegistry) -> None:
        registry.include(Accounts)
        with pytest.raises(RegistrationError, match="already"):
            registry.include(Accounts())


class TestMerging:
    async def test_a_registry_includes_another_as_it_is(self, registry: HandlerRegistry) -> None:
        other = HandlerRegistry()
        other.declare(Balance)
        other.handles(Deposit)(lambda command: 1)
        registry.include(other)
        registry.include(other)
        other.handles(Withdraw)(lambda command: 1)
        assert registry.names() == ("Deposit",)
        assert registry.unhandled() == ("Balance",)

    def test_clashes_are_refused(self, registry: HandlerRegistry) -> None:
        other = HandlerRegistry()
        other.handles(Deposit)(lambda command: 1)
        registry.handles(Deposit)(lambda command: 2)
        with pytest.raises(RegistrationError, match="already"):
            registry.include(other)


MODULES = {
    "__init__": "",
    "messages": """
        from command_bus.messages.message import Command, EntityId
        class AccountCommand(Command[int], entity="account"):
            account_id: EntityId
        class Open(AccountCommand): ...
        class Close(AccountCommand): ...
        """,
    "handlers": """
        from command_bus.handlers.registry import handles
        from {package}.messages import Close, Open
        @handles(Open)
        async def open_account(command: Open) -> int:
            return 1
        """,
}


class TestModules:
    @pytest.fixture
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: HandlerRegistry) -> Iterator[str]:
        """A package of an application, on the path and not yet imported."""
        name = f"shop_{tmp_path.name.replace('-', '_')}"
        (tmp_path / name).mkdir()
        for module, source in MODULES.items():
            (tmp_path / name / f"{module}.py").write_text(textwrap.dedent(source).replace("{package}", name))
        monkeypatch.syspath_prepend(tmp_path)
        yield name
        for module in [module for module in sys.modules if module.partition(".")[0] == name]:
            del sys.modules[module]

    def test_a_module_is_imported_by_name(self, package: str, default: HandlerRegistry) -> None:
        default.include(f"{package}.handlers")
        assert default.names() == ("Open",)

    def test_an_own_registry_takes_what_the_module_registered_and_no_more(
        self, package: str, default: HandlerRegistry, registry: HandlerRegistry
    ) -> None:
        handles(Deposit)(lambda command: 1)
        registry.include(f"{package}.handlers")
        assert registry.names() == ("Open",)
        assert registry.unhandled() == ()  # Close is only imported there
        registry.include(importlib.import_module(f"{package}.handlers"))
        assert default.names() == ("Deposit", "Open")

    def test_messages_of_a_module_are_declared_but_their_bases_are_not(self, package: str, registry: HandlerRegistry) -> None:
        registry.include(f"{package}.messages")
        assert sorted(registry.unhandled()) == ["Close", "Open"]

    def test_a_package_includes_what_is_imported_of_it(self, package: str, registry: HandlerRegistry) -> None:
        importlib.import_module(f"{package}.handlers")
        registry.include(package)
        assert registry.names() == ("Open",)
        assert registry.unhandled() == ("Close",)

    def test_a_module_with_a_similar_name_is_another(self, package: str, registry: HandlerRegistry) -> None:
        importlib.import_module(f"{package}.handlers")
        sys.modules[package[:-1]] = type(sys)(package[:-1])
        try:
            registry.include(sys.modules[package[:-1]])
        finally:
            del sys.modules[package[:-1]]
        assert len(registry) == 0

    def test_a_missing_module_is_an_import_error(self, registry: HandlerRegistry) -> None:
        with pytest.raises(ModuleNotFoundError):
            registry.include("no_such_module_of_ours")
