"""The parts of the command line that decide: generated types, the doctor's checks, tables, changes of files."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, TypeAdapter, create_model

pytest.importorskip("typer")

import typer

from command_bus import Command, EntityId, HandlerRegistry, Query
from command_bus.admin.info import EntityInfo, Stats
from command_bus.cli.codegen.clients import render_module, schema_document
from command_bus.cli.codegen.type_names import class_name, enum_members, python_type
from command_bus.cli.commands.dlq import DeadLetterReason
from command_bus.cli.commands.send import _reply_data
from command_bus.cli.output import pluralize
from command_bus.cli.process.supervisor import changed_files, snapshot
from command_bus.cli.terminal import counting, format_value
from command_bus.cli.times import parse_time
from command_bus.clock import format_duration
from command_bus.doctor.diagnosis import (
    Finding,
    check_entities,
    check_environment,
    check_mailboxes,
    check_namespace,
    check_server,
    check_work,
    worst_grade,
)
from command_bus.doctor.stored_checks import check_dead_letters
from command_bus.serialization.announcements import CommandInfo, WorkerStatus, read_description
from command_bus.settings import BusSettings, unknown_variables
from command_bus.transport.records import HoldInfo
from command_bus.transport.redis.admin.examination import Examination
from command_bus.worker.worker_bus import describe_commands


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    sku: str
    count: Annotated[int, Field(gt=0, le=99)] = 1
    color: Color = Color.RED
    inner: Item | None = None


class Order(Command[list[Item]], entity="order", delivery="at_most_once"):
    """Order things."""

    order: EntityId
    at: datetime
    price: Decimal
    least: Annotated[Decimal, Field(ge=0)] = Decimal("1.5")
    key: UUID
    items: list[Item]
    pair: tuple[int, str]
    tags: set[str] = set()  # noqa: RUF012 - a model copies it
    sizes: dict[str, float] = {}  # noqa: RUF012
    kind: Literal["a", "b"] = "a"
    span: timedelta = timedelta(seconds=3)
    raw: bytes = b"x"
    anything: Any = None
    note: Annotated[str, Field(max_length=3, pattern="^x")] | None = None


class GetOrders(Query[dict[str, Item]]):
    pass


class Place(Command[None], entity="order", name="orders/place-it"):
    order: EntityId


def _commands(*kinds: type[Any]) -> list[CommandInfo]:
    registry = HandlerRegistry()
    for kind in kinds:

        async def handle(command: Any) -> Any: ...

        handle.__annotations__["command"] = kind
        registry.handles(kind)(handle)
    found = [read_description(name, record, ()) for name, record in describe_commands(registry, BusSettings()).items()]
    return [each for each in found if each is not None]


class TestGenerated:
    def test_the_same_whatever_the_order(self) -> None:
        found = _commands(Order, GetOrders, Place)
        assert render_module(found, "shop") == render_module(found[::-1], "shop")
        assert schema_document(found, "shop") == schema_document(found[::-1], "shop")

    def test_classes_take_what_the_originals_take(self, monkeypatch: pytest.MonkeyPatch) -> None:
        source = render_module(_commands(Order, GetOrders, Place), "shop")
        module = ModuleType("generated_client")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        names = module.__dict__
        exec(compile(source, "client", "exec"), names)
        made = names["Order"].model_validate_json('{"order":"o","at":"2026-11-21T10:00:00Z","price":"1.5","key":"' + "0" * 32
                                                  + '","items":[{"sku":"s"}],"pair":[1,"a"]}')  # fmt: skip
        own = Order(order="o", at=made.at, price=Decimal("1.5"), key=UUID(int=0), items=[Item(sku="s")], pair=(1, "a"))
        assert made.model_dump(mode="json") == {name: own.model_dump(mode="json")[name] for name in made.model_dump()}
        spec, original = names["Order"].spec(), Order.spec()
        assert (spec.name, spec.entity, spec.key, spec.delivery) == (
            original.name,
            original.entity,
            original.key,
            original.delivery,
        )
        assert names["OrdersPlaceIt"].spec().name == "orders/place-it"
        assert names["GetOrders"].spec().entity is None
        assert names["Color"].RED.value == "red"

    def test_models_of_one_name_stay_apart(self) -> None:
        def with_item(kind: Any, name: str) -> CommandInfo:
            thing = create_model("Thing", value=(kind, ...))
            schema = TypeAdapter(list[thing]).json_schema()  # type: ignore[valid-type]
            fields = {"properties": {"things": schema}, "required": ["things"], "$defs": schema.pop("$defs"), "type": "object"}
            return CommandInfo(name, "command", None, None, "at_least_once", {}, fields, None, ())

        source = render_module([with_item(int, "A"), with_item(str, "B"), with_item(int, "C")], "shop")
        assert [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)] == [
            "BThing",
            "Thing",
            "A",
            "B",
            "C",
        ]
        assert "things: list[BThing]" in source

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            (int, "int"),
            (list[int] | None, "list[Any] | None"),
            (datetime, "dt.datetime"),
            (Literal["x", 3], "Literal['x', 3]"),
            (dict[str, bool], "dict[str, bool]"),
            (Annotated[str, Field(min_length=2)], "Annotated[str, Field(min_length=2)]"),
            (Decimal | None, "Decimal | None"),
            (type(None), "None"),
            (Any, "Any"),
        ],
    )
    def test_types(self, kind: Any, text: str) -> None:
        assert python_type(TypeAdapter(kind).json_schema(), {}).replace("list[int]", "list[Any]") == text

    def test_names(self) -> None:
        assert [class_name(text) for text in ("orders/place-it", "deposit", "9lives", "class", "!")] == [
            "OrdersPlaceIt",
            "Deposit",
            "_9lives",
            "Class",
            "Unnamed",
        ]
        assert enum_members({"enum": ["a b", "a-b", 1, "", "class"]}) == [
            ("A_B", "a b"),
            ("VALUE_A_B", "a-b"),
            ("VALUE_1", 1),
            ("VALUE_3", ""),
            ("VALUE_CLASS", "class"),
        ]


FIT = Examination(
    "redis://h",
    info={
        "redis_version": "7.2.4",
        "role": "master",
        "aof_enabled": 1,
        "maxmemory_policy": "noeviction",
        "used_memory": 1,
        "maxmemory": 100,
        "connected_clients": 12,
    },
    config={"appendfsync": "everysec", "timeout": "0", "maxclients": "10000", "stream-node-max-bytes": "512"},
    user="shop-operator",
    meta={"shards": "2", "protocol": "3", "mailbox:account": "per_entity"},
)


EMPTY = Stats(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ())


def _about(findings: list[Finding], about: str) -> Finding:
    return next(finding for finding in findings if finding.about == about)


class TestDoctor:
    def test_a_fit_server_is_fit(self) -> None:
        findings = [*check_server(FIT), *check_namespace(FIT, "shop", 2)]
        assert worst_grade(findings) == "ok", findings
        assert not any(finding.advice for finding in findings)

    @pytest.mark.parametrize(
        ("made", "advice"), [("2", "drain the namespace"), ("4", "upgrade command_bus"), ("3.1", "upgrade command_bus")]
    )
    def test_another_format_comes_with_advice(self, made: str, advice: str) -> None:
        (found, *_) = check_namespace(replace(FIT, meta={**FIT.meta, "protocol": made}), "shop", 2)
        assert (found.about, found.grade) == ("namespace", "bad")
        assert f"format {made}" in found.found
        assert found.advice.startswith(advice)

    @pytest.mark.parametrize(
        ("info", "about", "grade"),
        [
            ({"redis_version": "6.0.16"}, "version", "bad"),
            ({"redis_version": "6.2.14"}, "version", "warning"),
            ({"role": "slave"}, "role", "bad"),
            ({"redis_mode": "cluster"}, "role", "bad"),
            ({"redis_mode": "sentinel"}, "role", "bad"),
            ({"aof_enabled": 0}, "persistence", "bad"),
            ({"maxmemory_policy": "allkeys-lru"}, "eviction", "bad"),
            ({"maxmemory_policy": "volatile-ttl"}, "eviction", "warning"),
            ({"used_memory": 97}, "memory", "bad"),
            ({"used_memory": 85}, "memory", "warning"),
            ({"maxmemory": 0}, "memory", "warning"),
            ({"aof_last_write_status": "err"}, "last write", "bad"),
        ],
    )
    def test_what_is_unfit_comes_with_advice(self, info: dict[str, Any], about: str, grade: str) -> None:
        found = _about(check_server(replace(FIT, info={**FIT.info, **info})), about)
        assert found.grade == grade
        assert found.advice

    @pytest.mark.parametrize(
        ("change", "about", "grade"),
        [
            ({"scripts": "NOPERM"}, "scripts", "bad"),
            ({"skew": 30.0}, "clock", "warning"),
            ({"user": "default"}, "user", "warning"),
            ({"config": {"appendfsync": "no"}}, "persistence", "warning"),
            ({"info": {}}, "version", "warning"),
            ({"config": {"maxclients": "13"}}, "connections", "warning"),
            ({"config": {"maxclients": "12"}}, "connections", "bad"),
            ({"config": {"maxclients": "16"}}, "connections", "ok"),
            ({"config": {"timeout": "300"}}, "idle connections", "ok"),
        ],
    )
    def test_the_rest_of_the_server(self, change: dict[str, Any], about: str, grade: str) -> None:
        assert _about(check_server(replace(FIT, **change)), about).grade == grade

    def test_settings_that_say_another_number_of_shards_are_told_which_is_followed(self) -> None:
        found = _about(check_namespace(FIT, "shop", 3), "shards")
        assert (found.grade, found.found.partition(";")[0]) == ("warning", "all clients follow the recorded 2")
        assert found.advice.startswith("leave COMMAND_BUS_SHARDS out, or set 2; to change it")
        assert worst_grade(check_namespace(FIT, "shop", None)) == "ok"
        assert worst_grade(check_namespace(replace(FIT, meta={}), "shop", None)) == "warning"

    def test_work_that_nobody_does(self) -> None:
        stats = Stats(3, 0, 3, 0, 0, 1, 3, 0.0, 0.0, 2, 3, 0, 0, 0, 0, 0, 0, 0, ())
        lost = WorkerStatus("w", "h", 1, 0, 99.0, False, 1, 0, ())
        found = check_work(stats, [lost], [HoldInfo("all x", "x", "paused", 1, "why", everywhere=False)], ["A"])
        assert _about(found, "workers").grade == "bad"
        assert {finding.about for finding in found} == {"workers", "lost workers", "paused", "parked", "dead letters"}
        assert "not on every shard" in _about(found, "paused").found
        live = replace(lost, alive=True)
        assert _about(check_work(stats, [live], [], ["A"]), "handlers").grade == "warning"

    @pytest.mark.parametrize(
        ("size", "entities", "grade", "advised"),
        [
            ("512", 10**6, "ok", False), ("1024", 10**6, "ok", False), ("4096", 9_999, "ok", True), ("4096", 10_000, "warning", True),
            ("0", 10_000, "warning", True),
        ],
    )  # fmt: skip
    def test_a_stock_server_wastes_memory_only_on_many_entities(
        self, size: str, entities: int, grade: str, advised: bool
    ) -> None:
        (found,) = check_mailboxes(replace(FIT, config={"stream-node-max-bytes": size}), entities)
        assert (found.grade, bool(found.advice)) == (grade, advised)
        assert check_mailboxes(replace(FIT, config={}), entities) == []

    def test_a_lost_worker_is_a_warning_for_ten_minutes(self) -> None:
        def lost(*seconds: float) -> Finding:
            workers = [WorkerStatus(f"w{each:.0f}", "h", 1, 0, each + 60, False, 1, 0, (), each) for each in seconds]
            return _about(check_work(EMPTY, workers, [], []), "lost workers")

        assert (lost(599).grade, lost(3000, 599).grade, lost(600).grade) == ("warning", "warning", "ok")
        assert lost(3000, 30).found == "w30 (h, process 1) 30 s ago, w3000 (h, process 1) 50 min ago"
        assert not lost(600).advice

    @pytest.mark.parametrize(
        ("count", "days", "reported"), [(0, None, False), (9_999, 29.9, False), (10_000, 0.0, True), (1, 30.0, True)]
    )
    def test_old_or_many_letters_are_a_warning(self, count: int, days: float | None, reported: bool) -> None:
        found = check_dead_letters(replace(EMPTY, dead_letters=count), None if days is None else days * 86400)
        assert [each.grade for each in found] == ["warning"] * reported
        assert all("dlq purge --until 30d" in each.advice for each in found)

    def test_letters_that_workers_delete_are_not_said_to_stay(self) -> None:
        many = replace(EMPTY, dead_letters=20_000)
        day = 86400.0
        (found,) = check_dead_letters(many, day)
        assert "dead_letter_ttl" in found.advice
        assert check_dead_letters(many, day, most=50_000) == []
        assert check_dead_letters(replace(many, dead_letters=5), 45 * day, ttl=60 * day) == []
        for told in (check_dead_letters(many, day, ttl=60 * day), check_dead_letters(replace(many, pruned=1), day)):
            (found,) = told
            assert "workers delete the oldest" in found.found
            assert "purge" not in found.advice
            assert "--state parked" in found.advice

    def test_variables_that_are_no_settings(self) -> None:
        found = check_environment(unknown_variables(["COMMAND_BUS_LEESE", "COMMAND_BUS_XYZZY"]))
        assert [(each.grade, each.advice) for each in found] == [("warning", "write COMMAND_BUS_LEASE"), ("ok", "")]

    def test_entities_that_stand_still(self) -> None:
        def entity(name: str, state: Any, attempt: int, running_for: float | None) -> EntityInfo:
            return EntityInfo(name, "x", name, state, 1, 1.0, attempt, running_for, None, None, None, None)

        quick = [entity("a", "running", 1, 59.0), entity("b", "retrying", 1, None), entity("c", "waiting", 0, None)]
        assert check_entities(quick, ()) == []
        still = [entity(f"u{number}", "retrying", 0, None) for number in range(5)]
        found = check_entities([*quick, *still, entity("d", "running", 1, 61.0)], {each.name for each in still[1:]})
        assert _about(found, "unknown commands").found == "hold u1, u2, u3 and 1 more"
        assert _about(found, "long running").found == "d for 61 s"


class TestSmallThings:
    def test_times(self) -> None:
        assert [format_duration(seconds) for seconds in (None, 0.04, 9.94, 45, 600, 8000, 10**6)] == [
            "-",
            "0.0 s",
            "9.9 s",
            "45 s",
            "10 min",
            "2 h 13 min",
            "12 d",
        ]
        assert [pluralize(n, "letter", "letters") for n in (0, 1, 2000)] == ["0 letters", "1 letter", "2,000 letters"]

    def test_nothing_is_obeyed_by_a_terminal(self) -> None:
        assert format_value("\x1b[31mred\x07") == "\\x1b[31mred\\x07"
        assert format_value("\u202eevil") == "\\u202eevil"
        assert (format_value(None), format_value(1234), format_value(True), format_value("")) == ("-", "1,234", "yes", "-")

    def test_moments(self) -> None:
        assert parse_time(None) is None
        for text, seconds in (("90s", 90), ("30m", 1800), ("2h", 7200), ("7d", 604800)):
            found = parse_time(text)
            assert found is not None
            assert abs((datetime.now(UTC) - found).total_seconds() - seconds) < 10
        assert parse_time("2026-11-21T10:00+00:00") == datetime(2026, 11, 21, 10, tzinfo=UTC)
        with pytest.raises(typer.Exit) as ended:
            parse_time("yesterday")
        assert ended.value.exit_code == 2

    def test_the_reasons_are_those_of_the_docs(self) -> None:
        page = (Path(__file__).parents[2] / "docs" / "dead-letters.md").read_text(encoding="utf-8")
        assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == {*DeadLetterReason}

    def test_changed_files(self, tmp_path: Path) -> None:
        for name in ("a.py", "b.txt", ".hidden/c.py", "__pycache__/d.py", "sub/e.py", "venv/f.py"):
            file = tmp_path / name
            file.parent.mkdir(exist_ok=True)
            file.write_text("1")
        (tmp_path / "venv" / "pyvenv.cfg").touch()
        before = snapshot(tmp_path)
        assert sorted(Path(name).name for name in before) == ["a.py", "e.py"]
        (tmp_path / "a.py").unlink()
        (tmp_path / "sub" / "new.py").touch()
        os.utime(tmp_path / "sub" / "e.py", (1, 1))
        assert [Path(name).name for name in changed_files(before, snapshot(tmp_path))] == ["a.py", "e.py", "new.py"]
        assert changed_files(before, before) == []

    def test_a_reply_is_shown_as_it_was_sent(self) -> None:
        class Statement(BaseModel):
            balance: Decimal = Field(alias="theBalance")
            since: datetime

        class Ask(Query[tuple[Statement, ...]]): ...

        since = datetime(2026, 11, 21, tzinfo=UTC)
        reply = (Statement(theBalance=Decimal("2.50"), since=since),)
        assert _reply_data(Ask(), reply) == [{"balance": Decimal("2.50"), "since": since}]


class TestCounting:
    """The progress of a long act: on a terminal alone, over the same line; at Ctrl-C what it has done."""

    def counted(self, numbers: Iterable[int], error: BaseException | None = None) -> None:
        with counting(2000, "replayed") as tell:
            for number in numbers:
                tell(number)
            if error is not None:
                raise error

    def test_it_shows_ten_lines_a_second_at_most(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        self.counted(range(1, 1001))
        assert capsys.readouterr().err == "\r\x1b[K1 replayed of 2,000\r\x1b[K"

    def test_without_a_terminal_it_shows_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.counted(range(1, 1001))
        assert capsys.readouterr().err == ""

    def test_what_was_done_before_ctrl_c_is_said(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(asyncio.CancelledError):
            self.counted(range(1, 8), asyncio.CancelledError())
        assert capsys.readouterr().err == "command-bus: stopped: 7 replayed\n"
