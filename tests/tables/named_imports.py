"""The table *names in options × what the process was told*: where others write a query's options, these import and call nothing else.

Data alone: `test_named_imports.py` carries it out. A new name is a row here.
"""

from __future__ import annotations

__all__ = ["NAMES", "TOLD", "deposit", "either", "foreign", "run", "untyped"]

import subprocess
from subprocess import run
from types import FunctionType
from typing import Any

from command_bus import Command, EntityId


class Deposit(Command[None], entity="account"):
    account: EntityId


def deposit(row: dict[str, Any]) -> Deposit:
    return Deposit(account=row["account"])


def either(row: dict[str, Any]) -> Deposit | Command[Any]:
    return deposit(row)


def untyped(row: Any) -> Any:
    return subprocess.run(row, check=False)


foreign: Any = FunctionType(deposit.__code__, {"__name__": "elsewhere", "Deposit": Deposit})
foreign.__annotations__ = {"return": Deposit}

HERE = "tests.tables.named_imports"
TOLD = {
    "nothing is forbidden": {},
    "no package": {"COMMAND_BUS_SPARK_PICKLE": "no"},
    "this package": {"COMMAND_BUS_SPARK_PICKLE": "no", "COMMAND_BUS_SPARK_PACKAGES": f"shop, {HERE}"},
    "another package": {"COMMAND_BUS_SPARK_PICKLE": "no", "COMMAND_BUS_SPARK_PACKAGES": "tests.tables.named, shop"},
}
"""The environment of driver and executors."""

NAMES = {
    f"{HERE}:deposit": ("nothing is forbidden", "this package"),
    f"{HERE}:either": ("nothing is forbidden", "this package"),
    f"{HERE}:foreign": ("nothing is forbidden",),
    f"{HERE}:untyped": ("nothing is forbidden",),
    f"{HERE}:run": ("nothing is forbidden",),
    f"{HERE}:subprocess.run": ("nothing is forbidden",),
    f"{HERE}:Deposit": ("nothing is forbidden",),
    f"{HERE}:Deposit.model_construct": ("nothing is forbidden",),
    "subprocess:run": ("nothing is forbidden",),
    "os:system": ("nothing is forbidden",),
    "builtins:exec": ("nothing is forbidden",),
    f"{HERE}:missing": (),
    f"{HERE}:": (),
    "no.such.module:f": (),
    "": (),
}
"""Where each is taken as a mapper."""
