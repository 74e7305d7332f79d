"""Registering functions, marking methods, including objects and what makes them, and refusing what clashes."""

# mypy: disable-error-code="empty-body"
# Most of these functions are only registered, never called.

from __future__ import annotations

import asyncio
import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_bus.errors import RegistrationError
from command_bus.handlers.handler import Handler
from command_bus.handlers.registry import HandlerRegistry, default_registry, handles
from command_bus.messages.message import Command
from tests.unit.registry_messages import DEPOSIT, WITHDRAW, Balance, Deposit, Withdraw, run


@pytest.fixture
def registry() -> HandlerRegistry:
    return HandlerRegistry()


@pytest.fixture
def default() -> Iterator[HandlerRegistry]:
    """Provide the default registry, empty; restore it afterwards."""
    before = HandlerRegistry()
    before.include(default_registry)
    default_registry.clear()
    yield default_registry
    default_registry.clear()
    default_registry.include(before)


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
        """Provide a package of an application, on the path and not yet imported."""
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

    def test_a_registry_includes_only_handlers_of_the_module(
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
