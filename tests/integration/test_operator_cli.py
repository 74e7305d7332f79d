"""The operator's commands, each in a process of its own, on a live bus with real trouble in it: output, JSON and exit code."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import threading
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")

from tests.docs.trouble import ROOT, Trouble
from tests.integration.operator_cli import one_line, run, run_json

pytestmark = pytest.mark.server

COMMANDS = {"Charge", "Deposit", "Export", "GetBalance", "Ship"}


async def _oldest(troubled_shop: Trouble) -> datetime | None:
    async with troubled_shop.bus() as bus:
        return await bus.dead_letters.oldest()


class TestInspect:
    def test_stats(self, troubled_shop: Trouble) -> None:
        found = run_json(troubled_shop, "stats")
        assert (found["parked"], found["entities"], len(found["workers"]), found["holds"]) == (1, 4, 1, [])
        assert "11 accepted and not settled" in run(troubled_shop, "stats")

    def test_entities_list_says_why_they_wait(self, troubled_shop: Trouble) -> None:
        page = run_json(troubled_shop, "entities")
        states = {each["name"]: each["state"] for each in page["entities"]}
        assert states == {"account:a-3": "paused", "account:a-9": "retrying", "order:o-7": "parked", "report:sales": "running"}
        assert (page["matching"], page["complete"], page["cursor"]) == (4, True, None)
        text = run(troubled_shop, "entities")
        for why in ("asked by support, ticket 4711", "dead letter 0-", "no worker knows the command", "for "):
            assert why in text

    def test_entities_filter_sort_and_page(self, troubled_shop: Trouble) -> None:
        assert [each["name"] for each in run_json(troubled_shop, "entities", "account", "--sort", "name")["entities"]] == [
            "account:a-3",
            "account:a-9",
        ]
        assert [
            each["name"]
            for each in run_json(troubled_shop, "entities", "--state", "parked", "--state", "paused", "--sort", "name")[
                "entities"
            ]
        ] == [
            "account:a-3",
            "order:o-7",
        ]
        first = run_json(troubled_shop, "entities", "--limit", "3", "--sort", "name")
        rest = run_json(troubled_shop, "entities", "--limit", "3", "--sort", "name", "--cursor", first["cursor"])
        assert [each["name"] for each in first["entities"] + rest["entities"]] == [
            "account:a-3",
            "account:a-9",
            "order:o-7",
            "report:sales",
        ]
        assert first["cursor"] in run(troubled_shop, "entities", "--limit", "3", "--sort", "name")
        assert "no entity matches" in run(troubled_shop, "entities", "nothing")

    def test_a_parked_entity(self, troubled_shop: Trouble) -> None:
        found = run_json(troubled_shop, "entity", "order", "o-7")
        assert (found["entity"]["state"], found["head"]["command_id"], found["entity"]["attempt"]) == ("parked", "charge-995", 2)
        assert [each["command_id"] for each in found["waiting"]] == ["charge-2995", "charge-150"]
        assert found["letter"]["error_message"] == "the card reader does not answer"
        assert f"dlq replay {found['letter']['id']}" in run(troubled_shop, "entity", "order", "o-7")

    def test_a_stuck_handler(self, troubled_shop: Trouble) -> None:
        found = run_json(troubled_shop, "entity", "report", "sales")
        assert found["entity"]["state"] == "running"
        assert found["entity"]["running_for_seconds"] > found["lease_age_seconds"] < 2.0
        assert found["holder"]["host"] == "host-1"
        assert str(found["holder"]["pid"]) in run(troubled_shop, "entity", "report", "sales")

    def test_an_unknown_command(self, troubled_shop: Trouble) -> None:
        found = run_json(troubled_shop, "entity", "account", "a-9")
        assert (found["entity"]["state"], found["head"]["name"], found["handlers"]) == ("retrying", "Refund", 0)
        assert "no live worker: start one that knows it" in run(troubled_shop, "entity", "account", "a-9")

    def test_an_entity_without_work(self, troubled_shop: Trouble) -> None:
        assert "idle: nothing of it waits or runs, or it was never used" in run(troubled_shop, "entity", "order", "never")

    def test_a_dead_worker(self, troubled_shop: Trouble) -> None:
        live, lost = run_json(troubled_shop, "workers")["workers"]
        assert (live["alive"], lost["alive"]) == (True, False)
        assert set(live["commands"]) == COMMANDS
        assert "lost" in run(troubled_shop, "workers")

    def test_top_once(self, troubled_shop: Trouble) -> None:
        found = run_json(troubled_shop, "top", "--rows", "2")
        assert [each["depth"] for each in found["entities"]] == [4, 3]
        text = run(troubled_shop, "top", "--once")
        assert "order:o-7" in text
        assert "host-1" in text

    def test_introspect(self, troubled_shop: Trouble) -> None:
        assert {each["name"] for each in run_json(troubled_shop, "introspect")["commands"]} == COMMANDS
        assert json.loads(run(troubled_shop, "introspect", "Deposit"))["schema"]["required"] == ["account_id", "amount"]
        assert "account_id*, amount" in run(troubled_shop, "introspect")
        assert "announced are: Charge" in run(troubled_shop, "introspect", "Refund", code=1)

    def test_letters(self, troubled_shop: Trouble) -> None:
        found = run_json(troubled_shop, "dlq", "list")
        assert {(each["reason"], each["command"], each["count"]) for each in found["counts"]} == {
            ("interrupted", "Ship", 1),
            ("failed", "Charge", 1),
        }
        parked = run_json(troubled_shop, "dlq", "list", "--parked", "--since", "1h", "--type", "order", "--id", "o-7")["letters"]
        assert [each["command_id"] for each in parked] == ["charge-995"]
        assert run_json(troubled_shop, "dlq", "list", "--until", "1h")["matching"] == 0
        letter = parked[0]["id"]
        oldest = asyncio.run(_oldest(troubled_shop))
        assert oldest is not None
        assert oldest.timestamp() * 1000 == min(
            int(each["id"].split("-")[1]) for each in run_json(troubled_shop, "dlq", "list")["letters"]
        )
        assert run_json(troubled_shop, "dlq", "show", letter)["payload"] == {"order_id": "o-7", "cents": 995}
        text = run(troubled_shop, "dlq", "show", letter)
        assert 'raise OSError("the card reader does not answer")' in text
        assert "unknown_dead_letter" in one_line(run(troubled_shop, "dlq", "show", "0-1-0", code=1))

    def test_doctor(self, troubled_shop: Trouble) -> None:
        found = {each["about"]: each for each in run_json(troubled_shop, "doctor")["findings"]}
        assert (found["scripts"]["grade"], found["version"]["grade"], found["namespace"]["grade"]) == ("ok", "ok", "ok")
        assert (found["parked"]["grade"], found["lost workers"]["grade"]) == ("warning", "warning")
        assert found["unknown commands"]["found"] == "hold account:a-9"
        assert (found["connections"]["grade"], found["mailbox size"]["grade"]) == ("ok", "ok")
        assert not {"retention", "environment"} & found.keys()
        strict = {each["about"]: each for each in run_json(troubled_shop, "doctor", COMMAND_BUS_CONCURENCY="5")["findings"]}
        assert strict["environment"]["advice"] == "write COMMAND_BUS_CONCURRENCY"
        assert "warning" in run(troubled_shop, "doctor", "--strict", code=1)
        shards = {each["about"]: each for each in run_json(troubled_shop, "doctor", COMMAND_BUS_SHARDS="3")["findings"]}
        assert (shards["shards"]["grade"], "follow the recorded 1" in shards["shards"]["found"]) == ("warning", True)


class TestSend:
    def test_call_prints_the_reply(self, troubled_shop: Trouble) -> None:
        assert run(troubled_shop, "call", "Deposit", '{"account_id": "c-1", "amount": 5}') == "5\n"
        (troubled_shop.folder / "fields.json").write_text('{"account_id": "c-1", "amount": 6}')
        assert run(troubled_shop, "call", "Deposit", "@fields.json", "--app", "shop") == "11\n"
        assert run(troubled_shop, "call", "GetBalance", given='{"account_id": "c-1"}') == "11\n"

    def test_send_reports_duplicates(self, troubled_shop: Trouble) -> None:
        once = ("send", "Deposit", '{"account_id": "c-2", "amount": 5}', "--command-id", "c-2-1")
        assert run(troubled_shop, *once) == "c-2-1: accepted\n"
        assert run_json(troubled_shop, *once) == {"command_id": "c-2-1", "status": "duplicate", "other": None}
        text = one_line(
            run(troubled_shop, "send", "Deposit", '{"account_id": "c-2", "amount": 6}', "--command-id", "c-2-1", code=1)
        )
        assert "idempotency_conflict" in text

    def test_send_folds_by_a_unique_key(self, troubled_shop: Trouble) -> None:
        def sent(number: int, *words: str) -> str:
            return run(
                troubled_shop, "send", "Deposit", '{"account_id": "u-1", "amount": 5}', "--command-id", f"u-{number}", *words
            )

        storm = ("--unique", "save", "--wins", "latest", "--debounce", "3600", "--max-wait", "7200")
        assert sent(1, *storm) == "u-1: accepted\n"
        assert sent(2, *storm, "--app", "shop") == "u-2: replaced u-1\n"
        assert sent(3, "--unique", "save") == "u-3: duplicate, u-2 has its unique key\n"
        once = ("send", "Deposit", '{"account_id": "u-1", "amount": 5}', "--command-id", "u-4", "--unique", "save")
        found = run_json(troubled_shop, *once, "--wins", "first", "--until", "started", "--window", "60")
        assert found == {"command_id": "u-4", "status": "duplicate", "other": "u-2"}
        assert run(troubled_shop, "cancel", "u-2") == "u-2: cancelled\n"

    @pytest.mark.parametrize(
        ("words", "problem"),
        [
            (("--wins", "latest"), "--wins says how a unique key folds: name the key with --unique KEY"),
            (("--max-wait", "5"), "--max-wait says how a unique key folds"),
            (("--unique", ""), "the key is a text that is not empty"),
            (("--unique", "k", "--debounce", "5"), "write wins='latest'"),
            (("--unique", "k", "--window", "-1"), "Unique(window=-1.0)"),
        ],
    )
    def test_a_unique_key_that_cannot_be_one_is_not_sent(
        self, troubled_shop: Trouble, words: tuple[str, ...], problem: str
    ) -> None:
        assert problem in one_line(run(troubled_shop, "send", "Deposit", '{"account_id": "u-2", "amount": 5}', *words, code=2))

    @pytest.mark.parametrize("app", [(), ("--app", "shop")])
    @pytest.mark.parametrize(
        ("fields", "problem"),
        [
            ('{"account_id": "a", "amount": -5}', "amount"),
            ('{"account_id": "a", "amount": "5"}', "amount"),
            ('{"account_id": "a"}', "amount"),
            ('{"account_id": "a", "amount": 5, "more": 1}', "more"),
            ("[1]", "JSON object"),
            ("{", "no JSON"),
            ("@nowhere", "cannot be read"),
        ],
    )
    def test_wrong_fields_are_reported_and_not_sent(
        self, troubled_shop: Trouble, app: tuple[str, ...], fields: str, problem: str
    ) -> None:
        assert problem in one_line(run(troubled_shop, "send", "Deposit", fields, *app, code=2))

    def test_unannounced_commands_are_not_sent(self, troubled_shop: Trouble) -> None:
        assert "no worker has announced 'Refund'" in one_line(run(troubled_shop, "send", "Refund", "{}", code=2))

    def test_waiting_commands_can_be_cancelled(self, troubled_shop: Trouble) -> None:
        run(troubled_shop, "send", "Deposit", '{"account_id": "c-3", "amount": 5}', "--command-id", "c-3-1", "--delay", "3600")
        assert run(troubled_shop, "cancel", "c-3-1") == "c-3-1: cancelled\n"
        assert "c-3-1: not cancelled" in run(troubled_shop, "cancel", "c-3-1", code=1)

    def test_no_outcome_in_time_is_3_and_leaves_no_letter(self, troubled_shop: Trouble) -> None:
        """With its class or without: no caller waits any more, so it is not started, and it needs no operator."""
        letters = run_json(troubled_shop, "dlq", "list")
        run(troubled_shop, "entity", "account", "c-4", "pause")
        texts = [
            one_line(
                run(troubled_shop, "call", "Deposit", '{"account_id": "c-4", "amount": 5}', "--timeout", "0.3", *app, code=3)
            )
            for app in ((), ("--app", "shop"))
        ]
        run(troubled_shop, "entity", "account", "c-4", "resume")
        assert run(troubled_shop, "call", "GetBalance", '{"account_id": "c-4"}') == "0\n"
        assert run_json(troubled_shop, "dlq", "list") == letters
        assert all("no reply within 0.3 s" in text for text in texts), texts
        assert all("account:c-4 is paused: its commands wait until it is resumed" in text for text in texts), texts


class TestEvents:
    def test_watch_list_follow_unwatch(self, troubled_shop: Trouble) -> None:
        assert "nothing is watched" in run(troubled_shop, "events", "list")
        assert run(troubled_shop, "events", "watch", "account", "~") == "watched: account, what has no entity\n"
        assert "acount is not watched; watched: account" in run(troubled_shop, "events", "list", "acount")
        following = subprocess.Popen(
            [sys.executable, "-m", "command_bus", "events", "follow", "account", "--id", "e-1", "--kind", "completed", "--json"],
            env=troubled_shop.environment, cwd=troubled_shop.folder, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert following.stdout is not None
            lines: Future[str] = Future()
            threading.Thread(target=lambda: lines.set_result(following.stdout.readline())).start()  # type: ignore[union-attr]
            while not lines.done():
                run(troubled_shop, "call", "Deposit", '{"account_id": "e-1", "amount": 1}')
            first = json.loads(lines.result())
            assert (first["kind"], first["entity"], first["name"]) == ("completed", "account:e-1", "Deposit")
        finally:
            following.terminate()
            following.communicate()
        run(troubled_shop, "call", "Deposit", '{"account_id": "e-2", "amount": 1}')
        assert [each["kind"] for each in run_json(troubled_shop, "events", "list", "account", "--id", "e-2")["events"]] == [
            "accepted",
            "started",
            "completed",
        ]
        assert "account:e-2  completed  Deposit" in run(troubled_shop, "events", "list", "account", "--id", "e-2", "--last", "1")
        assert run_json(troubled_shop, "events", "list", "~") == {"events": []}
        assert run(troubled_shop, "events", "unwatch") == "nothing is watched\n"
        assert run(troubled_shop, "events", "watch", "a:b", code=1).startswith("command-bus: invalid_command: ")


class TestGenerate:
    @pytest.mark.slow
    def test_client_classes_are_typed(self, troubled_shop: Trouble) -> None:
        path = troubled_shop.folder / "shop_client.py"
        run(troubled_shop, "generate", "--out", str(path))
        use = troubled_shop.folder / "use_client.py"
        use.write_text(
            "from command_bus import CommandBus\nfrom shop_client import Deposit, GetBalance\n\n\n"
            "async def use(bus: CommandBus) -> int:\n"
            '    await bus.call(Deposit(account_id="g-1", amount=5))\n'
            '    balance: int = await bus.call(GetBalance(account_id="g-1"))\n    return balance\n'
        )
        environment = {**troubled_shop.environment, "MYPYPATH": str(ROOT)}
        mypy = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(troubled_shop.folder / ".mypy"), path.name, use.name],
            cwd=troubled_shop.folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert mypy.returncode == 0, mypy.stdout
        (troubled_shop.folder / "pyrightconfig.json").write_text(
            json.dumps({"typeCheckingMode": "strict", "include": [path.name, use.name], "extraPaths": [str(ROOT)]})
        )
        pyright = subprocess.run(
            [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
            cwd=troubled_shop.folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert pyright.returncode == 0, pyright.stdout

    def test_client_classes_work(self, troubled_shop: Trouble) -> None:
        path = troubled_shop.folder / "shop_client.py"
        assert "5 commands" in run(troubled_shop, "generate", "--out", str(path))
        assert "up to date" in run(troubled_shop, "generate", "--out", str(path), "--check")
        assert run(troubled_shop, "generate") == path.read_text()
        client = _imported(path)

        async def use_it() -> int:
            async with troubled_shop.bus() as bus:
                await bus.call(client.Deposit(account_id="g-2", amount=5), timeout=10)
                return await bus.call(client.GetBalance(account_id="g-2"), timeout=10)

        assert asyncio.run(use_it()) == 5
        with pytest.raises(ValueError, match="amount"):
            client.Deposit(account_id="g-2", amount=0)
        path.write_text("# older\n")
        assert "not what the workers announce" in run(troubled_shop, "generate", "--out", str(path), "--check", code=1)

    def test_json_schema(self, troubled_shop: Trouble) -> None:
        document = json.loads(run(troubled_shop, "generate", "Deposit", "--json-schema"))
        assert document["commands"]["Deposit"]["entity"] == "account"
        assert "Refund" in run(troubled_shop, "generate", "Refund", code=1)


def _imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("shop_client", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["shop_client"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["shop_client"]
    return module


class TestRepair:
    """Last, and in this order: it mends what the tests above look at."""

    def test_pause_drain_and_resume_of_a_type(self, troubled_shop: Trouble) -> None:
        send = ("send", "Deposit", '{"account_id": "r-1", "amount": 5}')
        assert run(troubled_shop, "pause", "account", "-m", "month end") == "all account: paused\n"
        assert run(troubled_shop, "pause", "account") == "all account: was paused already\n"
        assert "accepted" in run(troubled_shop, *send)
        assert "all account paused" in run(troubled_shop, "entities", "account")
        assert run_json(troubled_shop, "stats")["holds"][0]["mode"] == "paused"
        assert run(troubled_shop, "drain", "account") == "all account: draining\n"
        assert "draining:" in one_line(run(troubled_shop, *send, code=1))
        assert run(troubled_shop, "resume", "account") == "all account: resumed\n"
        assert "neither" in run(troubled_shop, "resume", "account", code=1)
        assert run(troubled_shop, "call", "GetBalance", '{"account_id": "r-1"}') == "5\n"
        for verb in ("pause", "drain", "resume"):
            assert "the whole bus" in run(troubled_shop, verb, "--all")

    def test_pause_drain_and_resume_of_an_entity(self, troubled_shop: Trouble) -> None:
        assert run(troubled_shop, "entity", "account", "r-2", "drain") == "account:r-2: draining\n"
        assert run(troubled_shop, "entity", "account", "r-2", "pause") == "account:r-2: paused\n"
        assert run(troubled_shop, "entity", "account", "r-2", "resume") == "account:r-2: resumed\n"
        assert "dead letter" in one_line(run(troubled_shop, "entity", "order", "o-7", "resume", code=1))
        assert run(troubled_shop, "entity", "account", "a-3", "resume") == "account:a-3: resumed\n"
        assert run(troubled_shop, "call", "GetBalance", '{"account_id": "a-3"}') == "46\n"

    def test_replaying_a_parked_command_unblocks_its_entity(self, troubled_shop: Trouble) -> None:
        (letter,) = run_json(troubled_shop, "dlq", "list", "--parked")["letters"]
        assert "charge-995" not in run(troubled_shop, "dlq", "replay", letter["id"], "--dry-run").replace(letter["id"], "")
        (troubled_shop.folder / "card-reader").touch()
        assert run(troubled_shop, "dlq", "replay", letter["id"]) == f"{letter['id']}: replayed charge-995\n"
        assert run(troubled_shop, "call", "Charge", '{"order_id": "o-7", "cents": 1}') == '"charged"\n'
        assert run_json(troubled_shop, "entity", "order", "o-7")["entity"]["depth"] == 0

    def test_letters_and_commands_are_purged(self, troubled_shop: Trouble) -> None:
        assert "1 letter" in run(troubled_shop, "dlq", "purge", "--type", "parcel", "--dry-run")
        assert "1 deleted" in run(troubled_shop, "dlq", "purge", "--type", "parcel", "--yes")
        assert "no letter matches" in run(troubled_shop, "dlq", "replay", "--type", "parcel", "--yes")
        assert "unknown_dead_letter" in run(troubled_shop, "dlq", "discard", "0-1-0", "--yes", code=1)
        assert "1 waiting command of 1 entity" in run(troubled_shop, "purge", "report", "--dry-run")
        assert "1 command removed" in run(troubled_shop, "entity", "report", "sales", "purge", "--yes")
        assert " removed" in run(troubled_shop, "purge", "account", "--yes")
        assert " waiting command" in run(troubled_shop, "purge", "--all", "--yes")
        left = run_json(troubled_shop, "entities")["entities"]
        assert {(each["state"], each["depth"]) for each in left if each["depth"]} == {("running", 1)}  # what runs is left alone
