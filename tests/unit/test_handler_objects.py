"""Methods as handlers: of one instance, or of an object per command."""

# mypy: disable-error-code="empty-body"
# Most of these functions are only registered, never called.

from __future__ import annotations

import asyncio
import functools
import sqlite3
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

import pytest

from command_bus.errors import RegistrationError
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.context import CommandContext
from tests.unit.registry_messages import DEPOSIT, WITHDRAW, Accounts, Balance, Deposit, Withdraw, run


@pytest.fixture
def registry() -> HandlerRegistry:
    return HandlerRegistry()


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
    """Records what happened to the provided objects, and in which thread."""

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

    async def test_a_sync_method_of_an_async_object_needs_its_scope(self, registry: HandlerRegistry) -> None:
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

    def test_a_provider_function_without_a_class_is_refused(self, registry: HandlerRegistry) -> None:
        def untold(): ...
        def anything() -> Any: ...

        for source in (untold, anything):
            with pytest.raises(RegistrationError, match="of=TheClass"):
                registry.include(source)

    def test_two_sources_for_one_message_are_refused(self, registry: HandlerRegistry) -> None:
        registry.include(Accounts)
        with pytest.raises(RegistrationError, match="already"):
            registry.include(Accounts())
