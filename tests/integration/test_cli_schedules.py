"""`command-bus schedules` and `delayed` against a server with a worker, and what `doctor` says of schedules."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")

from command_bus import Command, CommandBus, CommandContext, EntityId, HandlerRegistry, every
from command_bus.embedded import EmbeddedServer, find_server_binary
from command_bus.scheduling.record import ScheduleRecord
from command_bus.transport.ports.schedules import RecordChange
from tests.conformance.put_service import until
from tests.program import run_program

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]


class Poll(Command[None], entity="shop"):
    shop: EntityId
    pages: int = 1


class Shop:
    """A namespace, and the program."""

    def __init__(self, url: str) -> None:
        self.url, self.namespace = url, f"cli-{secrets.token_hex(4)}"
        self.ran: list[str] = []
        self.registry = HandlerRegistry()

        @self.registry.handles(Poll)
        async def poll(command: Poll, context: CommandContext) -> None:
            self.ran.append(context.command_id)

    def bus(self, **arguments: Any) -> CommandBus:
        return CommandBus(self.url, namespace=self.namespace, **{"registry": self.registry, **arguments})

    async def run(self, *words: str, code: int = 0, namespace: str = "") -> str:
        """Run the program; return what it printed."""
        hidden = ("COMMAND_BUS_URL", "COMMAND_BUS_NAMESPACE", "REDIS_URL", "COMMAND_BUS_EMBEDDED_URL")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        environment |= {"PYTHONPATH": str(ROOT), "COLUMNS": "300", "COMMAND_BUS_URL": self.url}
        done = await asyncio.to_thread(run_program, *words, "-n", namespace or self.namespace, env=environment)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    async def json(self, *words: str, code: int = 0, namespace: str = "") -> Any:
        return json.loads(await self.run(*words, "--json", code=code, namespace=namespace))


@pytest.fixture(scope="module")
def url() -> Any:
    server = EmbeddedServer.start(binary=find_server_binary())
    yield server.url
    server.stop()


@pytest.fixture
def shop(url: str) -> Shop:
    return Shop(url)


PUT = ("schedules", "put", "poll-7", "Poll", '{"shop": "7", "pages": 3}')


async def test_a_schedule_from_put_to_remove(shop: Shop) -> None:
    async with shop.bus() as bus, bus.worker():
        put = await shop.json(*PUT, "--every", "1h", "--missed", "all", "--overlap", "skip", "--jitter", "2", "--header", "a=b")
        assert (put["name"], put["state"], put["command"], put["entity_type"], put["entity_id"]) == (
            *("poll-7", "active", "Poll"),
            *("shop", "7"),
        )
        assert (put["missed"], put["overlap"], put["jitter_seconds"], put["fired"]) == ("all", "skip", 2.0, 0)
        assert (
            await shop.json(*PUT, "--every", "1h", "--missed", "all", "--overlap", "skip", "--jitter", "2", "--header", "a=b")
        ) == put
        listed = await shop.json("schedules", "list", "shop")
        assert (listed["count"], listed["schedules"]) == (1, [put])
        assert (await shop.json("schedules", "list", "other"))["count"] == 0
        ticks = (await shop.json("schedules", "next", "poll-7", "--count", "3"))["next"]
        moments = [datetime.fromisoformat(each) for each in ticks]
        assert [after - before for before, after in pairwise(moments)] == [timedelta(hours=1)] * 2
        assert (await shop.json("schedules", "pause", "poll-7", "-m", "closed"))["result"] == "paused"
        shown = await shop.json("schedules", "show", "poll-7")
        assert (shown["state"], shown["reason"], shown["next_at"]) == ("paused", "closed", None)
        triggered = (await shop.json("schedules", "trigger", "poll-7"))["command_id"]
        await until(lambda: shop.ran == [triggered])
        assert triggered.endswith("Z!")
        assert (await shop.json("schedules", "resume", "poll-7"))["result"] == "resumed"
        assert (await shop.json("schedules", "resume", "poll-7", code=1))["result"] == "was not paused"
        assert (await bus.schedules.get("poll-7")).fired == 1
        assert "pass --yes" in await shop.run("schedules", "remove", "poll-7", code=2)
        assert (await shop.json("schedules", "remove", "poll-7", "--yes"))["result"] == "removed"
        for words in (("show",), ("next",), ("pause",), ("resume",), ("trigger",), ("remove", "--yes")):
            text = await shop.run("schedules", words[0], "poll-7", *words[1:], code=1)
            assert "there is no schedule 'poll-7'" in text
        assert "there are no schedules" in await shop.run("schedules", "list")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 2, "--cron"),
        (("--cron", "0 2 * * *", "--every", "30s"), 2, "--cron"),
        (("--cron", "61 * * * *"), 2, "61"),
        (("--cron", "0 2 * * *", "--tz", "Mars/Olympus"), 2, "no time zone"),
        (("--every", "0s"), 2, "0s"),
        (("--every", "1h", "--end", "2020-01-01"), 2, "no tick to come"),
        (("--every", "1h", "--missed", "some"), 2, "missed"),
        (("--every", "1h", "--max-runs", "0"), 2, "max-runs"),
    ],
)
async def test_65_wrong_words_put_nothing(shop: Shop, words: tuple[str, ...], code: int, text: str) -> None:
    async with shop.bus() as bus, bus.worker():
        assert text in await shop.run(*PUT, *words, code=code)
        assert (await bus.stats()).schedules_stored == 0


async def test_events_of_schedules(shop: Shop) -> None:
    async with shop.bus() as bus:
        assert await shop.run("events", "watch", "@schedules") == "watched: @schedules\n"
        await bus.schedules.put("poll-7", Poll(shop="7"), every(3600))
        await bus.schedules.put("poll-8", Poll(shop="8"), every(3600))
        await bus.schedules.pause("poll-7", "closed")
        lines = (await shop.run("events", "list", "@schedules:poll-7")).splitlines()
        assert [line.split("  ", 1)[1] for line in lines] == ["schedule poll-7  put", "schedule poll-7  paused  closed"]
        found = (await shop.json("events", "list", "@schedules", "--kind", "put"))["events"]
        assert [(each["schedule"], each["entity"]) for each in found] == [
            (name, f"schedule {name}") for name in ("poll-7", "poll-8")
        ]
        assert await shop.run("events", "unwatch", "@schedules") == "nothing is watched\n"
        assert "@schedules is not watched" in await shop.run("events", "list", "@schedules")


async def test_schedules_move_to_another_namespace(shop: Shop, tmp_path: Path) -> None:
    there, file = f"{shop.namespace}-b", tmp_path / "schedules.jsonl"
    async with shop.bus() as bus, bus.worker():
        await shop.run(*PUT, "--every", "1h")
        assert "its schedules stay (1)" in await shop.run("drain", "--all")
        file.write_text(await shop.run("schedules", "export", "--stop"), encoding="utf-8")
        assert (await shop.json("schedules", "show", "poll-7"))["state"] == "exported"
        assert (await shop.json("schedules", "import", str(file), namespace=there)) == {"put": ["poll-7"], "kept": []}
        again = await shop.run("schedules", "import", str(file), namespace=there, code=1)
        assert "poll-7: stays as it is here" in again
        assert (await shop.json("schedules", "import", str(file))) == {"put": ["poll-7"], "kept": []}, "taken back"
        stats = await shop.json("stats")
        assert (stats["schedules"], stats["schedules_stored"]) == (1, 1)
        question = await shop.run("obliterate", there, "--force", namespace=there, code=2)
        assert "1 schedule?" in question
        file.write_text("nothing\n", encoding="utf-8")
        assert "line 1" in await shop.run("schedules", "import", str(file), code=2)
        assert "No such file" in await shop.run("schedules", "import", str(tmp_path / "none"), code=2)


async def test_delayed_commands_are_listed_and_promoted(shop: Shop) -> None:
    async with shop.bus() as bus, bus.worker():
        for number, hours in enumerate((3, 1, 2)):
            await bus.dispatch(Poll(shop=str(number)), delay=3600 * hours, command_id=f"later-{number}")
        listed = await shop.json("delayed", "list", "shop")
        assert [each["command_id"] for each in listed["delayed"]] == ["later-1", "later-2", "later-0"]
        soon = (datetime.now(UTC) + timedelta(hours=1.5)).strftime("%Y-%m-%dT%H:%M:%SZ")
        assert (await shop.json("delayed", "list", "--before", soon))["count"] == 1
        assert "the first 1 of 3" in await shop.run("delayed", "list", "--limit", "1")
        assert await shop.json("delayed", "promote", "later-0", "later-1") == {
            "promoted": ["later-0", "later-1"],
            "not_delayed": [],
        }
        await until(lambda: set(shop.ran) == {"later-0", "later-1"})
        assert (await shop.json("delayed", "promote", "later-0", "--at", soon, code=1))["not_delayed"] == ["later-0"]
        assert (await shop.json("delayed", "promote", "later-2", "--at", soon))["promoted"] == ["later-2"]
        (left,) = (await shop.json("delayed", "list"))["delayed"]
        assert left["due_at"].startswith(soon[:-1])
        await bus.cancel("later-2")
        assert "nothing is delayed" in await shop.run("delayed", "list")


async def found_of_schedules(shop: Shop, *words: str, code: int = 0) -> dict[str, tuple[str, str, str]]:
    """Return the doctor's findings about schedules: grade, text and advice by subject."""
    findings = (await shop.json("doctor", *words, code=code))["findings"]
    return {each["about"]: (each["grade"], each["found"], each["advice"]) for each in findings if "schedule" in each["about"]}


async def test_the_doctor_names_schedules_that_do_not_fire(shop: Shop) -> None:
    async with shop.bus() as bus:
        assert await found_of_schedules(shop) == {}
        await bus.schedules.put("poll-7", Poll(shop="7"), every(3600))
        findings = await found_of_schedules(shop)
        assert findings["schedules unhandled"][:2] == ("warning", "poll-7 (Poll)")
        async with bus.worker():
            await until(lambda: is_announced(bus))
            assert (await found_of_schedules(shop))["schedules"][:2] == ("ok", "1")
        record, raw = await bus.schedules.firing.settled("poll-7")
        assert record is not None
        await put_off(bus, record, raw)
        grade, text, advice = (await found_of_schedules(shop, code=1))["schedules overdue"]
        assert (grade, text.startswith("poll-7 overdue, by up to")) == ("bad", True)
        assert "schedules show poll-7" in advice


async def is_announced(bus: CommandBus) -> bool:
    return any(each.name == "Poll" and each.workers for each in await bus.fleet.commands())


async def put_off(bus: CommandBus, record: ScheduleRecord, raw: bytes) -> None:
    """Make a schedule's next tick ten minutes old, and let no worker see it."""
    late = replace(record, next=(record.next or 0) - 4_200_000)
    assert await bus.session.transport.schedules.change([RecordChange(record.name, raw, late.pack(), -1)]) == [True]
