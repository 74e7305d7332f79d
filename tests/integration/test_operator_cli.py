"""Every command of the operator's, in a process of its own, against a live bus with real trouble in it: what it prints, its JSON, its exit code."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")

from command_bus.cli import main
from tests.docs.trouble import ROOT, Trouble

pytestmark = pytest.mark.server

COMMANDS = {"Charge", "Deposit", "Export", "GetBalance", "Ship"}


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trouble]:
    """One stage for all tests of this module; those that repair something come with trouble of their own."""
    stage = Trouble(tmp_path_factory.mktemp("shop"))
    asyncio.run(stage.__aenter__())
    yield stage
    asyncio.run(stage.__aexit__())


def ask(trouble: Trouble, *arguments: str, code: int = 0, **options: Any) -> Any:
    """The JSON that a command prints."""
    done = trouble.run(*arguments, "--json", **options)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def say(trouble: Trouble, *arguments: str, code: int = 0, **options: Any) -> str:
    """What a command prints, to both streams."""
    done = trouble.run(*arguments, **options)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def _without(environment: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names}


async def _oldest(trouble: Trouble) -> datetime | None:
    async with trouble.bus() as bus:
        return await bus.dead_letters.oldest()


def one_line(text: str) -> str:
    assert text.count("\n") == 1, text
    return text.strip()


class TestLooking:
    def test_stats(self, trouble: Trouble) -> None:
        found = ask(trouble, "stats")
        assert (found["parked"], found["entities"], len(found["workers"]), found["holds"]) == (1, 4, 1, [])
        assert "11 accepted and not settled" in say(trouble, "stats")

    def test_entities_are_listed_with_why_they_stand_still(self, trouble: Trouble) -> None:
        page = ask(trouble, "entities")
        states = {each["name"]: each["state"] for each in page["entities"]}
        assert states == {"account:a-3": "paused", "account:a-9": "retrying", "order:o-7": "parked", "report:sales": "running"}
        assert (page["matching"], page["complete"], page["cursor"]) == (4, True, None)
        text = say(trouble, "entities")
        for why in ("asked by support, ticket 4711", "dead letter 0-", "no worker knows the command", "for "):
            assert why in text

    def test_entities_are_chosen_sorted_and_paged(self, trouble: Trouble) -> None:
        assert [each["name"] for each in ask(trouble, "entities", "account", "--sort", "name")["entities"]] == [
            "account:a-3",
            "account:a-9",
        ]
        assert [
            each["name"]
            for each in ask(trouble, "entities", "--state", "parked", "--state", "paused", "--sort", "name")["entities"]
        ] == [
            "account:a-3",
            "order:o-7",
        ]
        first = ask(trouble, "entities", "--limit", "3", "--sort", "name")
        rest = ask(trouble, "entities", "--limit", "3", "--sort", "name", "--cursor", first["cursor"])
        assert [each["name"] for each in first["entities"] + rest["entities"]] == [
            "account:a-3",
            "account:a-9",
            "order:o-7",
            "report:sales",
        ]
        assert first["cursor"] in say(trouble, "entities", "--limit", "3", "--sort", "name")
        assert "no entity matches" in say(trouble, "entities", "nothing")

    def test_a_parked_entity(self, trouble: Trouble) -> None:
        found = ask(trouble, "entity", "order", "o-7")
        assert (found["entity"]["state"], found["head"]["command_id"], found["entity"]["attempt"]) == ("parked", "charge-995", 2)
        assert [each["command_id"] for each in found["waiting"]] == ["charge-2995", "charge-150"]
        assert found["letter"]["error_message"] == "the card reader does not answer"
        assert f"dlq replay {found['letter']['id']}" in say(trouble, "entity", "order", "o-7")

    def test_a_stuck_handler(self, trouble: Trouble) -> None:
        found = ask(trouble, "entity", "report", "sales")
        assert found["entity"]["state"] == "running"
        assert found["entity"]["running_for_seconds"] > found["lease_age_seconds"] < 2.0
        assert found["holder"]["host"] == "host-1"
        assert str(found["holder"]["pid"]) in say(trouble, "entity", "report", "sales")

    def test_an_unknown_command(self, trouble: Trouble) -> None:
        found = ask(trouble, "entity", "account", "a-9")
        assert (found["entity"]["state"], found["head"]["name"], found["handlers"]) == ("retrying", "Refund", 0)
        assert "no live worker: start one that knows it" in say(trouble, "entity", "account", "a-9")

    def test_an_entity_without_work(self, trouble: Trouble) -> None:
        assert "idle: nothing of it waits or runs, or it was never used" in say(trouble, "entity", "order", "never")

    def test_a_dead_worker(self, trouble: Trouble) -> None:
        live, lost = ask(trouble, "workers")["workers"]
        assert (live["alive"], lost["alive"]) == (True, False)
        assert set(live["commands"]) == COMMANDS
        assert "lost" in say(trouble, "workers")

    def test_top_once(self, trouble: Trouble) -> None:
        found = ask(trouble, "top", "--rows", "2")
        assert [each["depth"] for each in found["entities"]] == [4, 3]
        text = say(trouble, "top", "--once")
        assert "order:o-7" in text
        assert "host-1" in text

    def test_introspect(self, trouble: Trouble) -> None:
        assert {each["name"] for each in ask(trouble, "introspect")["commands"]} == COMMANDS
        assert json.loads(say(trouble, "introspect", "Deposit"))["schema"]["required"] == ["account_id", "amount"]
        assert "account_id*, amount" in say(trouble, "introspect")
        assert "announced are: Charge" in say(trouble, "introspect", "Refund", code=1)

    def test_letters(self, trouble: Trouble) -> None:
        found = ask(trouble, "dlq", "list")
        assert {(each["reason"], each["command"], each["count"]) for each in found["counts"]} == {
            ("interrupted", "Ship", 1),
            ("failed", "Charge", 1),
        }
        parked = ask(trouble, "dlq", "list", "--parked", "--since", "1h", "--type", "order", "--id", "o-7")["letters"]
        assert [each["command_id"] for each in parked] == ["charge-995"]
        assert ask(trouble, "dlq", "list", "--until", "1h")["matching"] == 0
        letter = parked[0]["id"]
        oldest = asyncio.run(_oldest(trouble))
        assert oldest is not None
        assert oldest.timestamp() * 1000 == min(int(each["id"].split("-")[1]) for each in ask(trouble, "dlq", "list")["letters"])
        assert ask(trouble, "dlq", "show", letter)["payload"] == {"order_id": "o-7", "cents": 995}
        text = say(trouble, "dlq", "show", letter)
        assert 'raise OSError("the card reader does not answer")' in text
        assert "unknown_dead_letter" in one_line(say(trouble, "dlq", "show", "0-1-0", code=1))

    def test_doctor(self, trouble: Trouble) -> None:
        found = {each["about"]: each for each in ask(trouble, "doctor")["findings"]}
        assert (found["scripts"]["grade"], found["version"]["grade"], found["namespace"]["grade"]) == ("ok", "ok", "ok")
        assert (found["parked"]["grade"], found["lost workers"]["grade"]) == ("warning", "warning")
        assert found["unknown commands"]["found"] == "hold account:a-9"
        assert (found["connections"]["grade"], found["mailbox size"]["grade"]) == ("ok", "ok")
        assert not {"retention", "environment"} & found.keys()
        strict = {each["about"]: each for each in ask(trouble, "doctor", COMMAND_BUS_CONCURENCY="5")["findings"]}
        assert strict["environment"]["advice"] == "write COMMAND_BUS_CONCURRENCY"
        assert "warning" in say(trouble, "doctor", "--strict", code=1)
        shards = ask(trouble, "doctor", code=1, COMMAND_BUS_SHARDS="3")["findings"]
        assert "set COMMAND_BUS_SHARDS=1" in {each["advice"] for each in shards}


class TestSending:
    def test_call_gives_the_reply(self, trouble: Trouble) -> None:
        assert say(trouble, "call", "Deposit", '{"account_id": "c-1", "amount": 5}') == "5\n"
        (trouble.folder / "fields.json").write_text('{"account_id": "c-1", "amount": 6}')
        assert say(trouble, "call", "Deposit", "@fields.json", "--app", "shop") == "11\n"
        assert say(trouble, "call", "GetBalance", given='{"account_id": "c-1"}') == "11\n"

    def test_send_says_whether_it_is_new(self, trouble: Trouble) -> None:
        once = ("send", "Deposit", '{"account_id": "c-2", "amount": 5}', "--command-id", "c-2-1")
        assert say(trouble, *once) == "c-2-1: accepted\n"
        assert ask(trouble, *once) == {"command_id": "c-2-1", "status": "duplicate"}
        text = one_line(say(trouble, "send", "Deposit", '{"account_id": "c-2", "amount": 6}', "--command-id", "c-2-1", code=1))
        assert "idempotency_conflict" in text

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
    def test_wrong_fields_are_told_and_not_sent(self, trouble: Trouble, app: tuple[str, ...], fields: str, problem: str) -> None:
        assert problem in one_line(say(trouble, "send", "Deposit", fields, *app, code=2))

    def test_what_nobody_announced_is_not_sent(self, trouble: Trouble) -> None:
        assert "no worker has announced 'Refund'" in one_line(say(trouble, "send", "Refund", "{}", code=2))

    def test_what_has_not_started_can_be_cancelled(self, trouble: Trouble) -> None:
        say(trouble, "send", "Deposit", '{"account_id": "c-3", "amount": 5}', "--command-id", "c-3-1", "--delay", "3600")
        assert say(trouble, "cancel", "c-3-1") == "c-3-1: cancelled\n"
        assert "c-3-1: not cancelled" in say(trouble, "cancel", "c-3-1", code=1)

    def test_no_outcome_in_time_is_3_and_leaves_no_letter(self, trouble: Trouble) -> None:
        """With its class or without: nobody waits for it any more, so it is not started, and it is no operator's business."""
        letters = ask(trouble, "dlq", "list")
        say(trouble, "entity", "account", "c-4", "pause")
        texts = [
            one_line(say(trouble, "call", "Deposit", '{"account_id": "c-4", "amount": 5}', "--timeout", "0.3", *app, code=3))
            for app in ((), ("--app", "shop"))
        ]
        say(trouble, "entity", "account", "c-4", "resume")
        assert say(trouble, "call", "GetBalance", '{"account_id": "c-4"}') == "0\n"
        assert ask(trouble, "dlq", "list") == letters
        assert all("no reply within 0.3 s" in text for text in texts), texts
        assert all("account:c-4 is paused: its commands wait until it is resumed" in text for text in texts), texts


class TestMistakes:
    @pytest.mark.parametrize("command", [("stats",), ("doctor",), ("dlq", "list"), ("pause", "--all"), ("send", "Deposit", "{}")])
    def test_no_server_is_one_line_and_4(self, trouble: Trouble, command: tuple[str, ...]) -> None:
        text = one_line(say(trouble, *command, "--url", "redis://127.0.0.1:1", code=4, COMMAND_BUS_DISPATCH_TIMEOUT="0.2"))
        assert "redis://127.0.0.1:1" in text

    def test_a_password_is_not_shown(self, trouble: Trouble) -> None:
        text = say(trouble, "stats", "--url", "redis://u:hidden@127.0.0.1:1", code=4, COMMAND_BUS_DISPATCH_TIMEOUT="0.2")
        assert "hidden" not in text

    def test_an_unknown_namespace_is_not_made(self, trouble: Trouble) -> None:
        assert "no namespace 'shopp'" in one_line(say(trouble, "stats", "-n", "shopp", code=2))
        assert "no namespace 'shopp'" in one_line(say(trouble, "pause", "--all", "-n", "shopp", code=2))

    def test_without_any_server_it_says_how_to_name_one(self, trouble: Trouble, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "command_bus", "stats"],
            cwd=tmp_path,
            env=_without(trouble.environment, "COMMAND_BUS_URL") | {"XDG_RUNTIME_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert "COMMAND_BUS_URL" in one_line(done.stderr)

    @pytest.mark.parametrize(
        "command",
        [("pause",), ("pause", "account", "--all"), ("dlq", "replay"), ("dlq", "purge"), ("dlq", "list", "--id", "x"),
         ("dlq", "list", "--since", "yesterday"), ("entities", "--cursor", "x"), ("generate", "--check"), ("call", "Deposit", "{}", "--header", "x"),
         ("entity", "order", "o-7", "pause", "--dry-run"), ("stats", "--app", "shop:nothing"), ("stats", "--app", "nowhere")],
        ids=" ".join,
    )  # fmt: skip
    def test_wrong_usage_is_one_line_and_2(self, trouble: Trouble, command: tuple[str, ...]) -> None:
        one_line(say(trouble, *command, code=2))

    @pytest.mark.parametrize(
        "command",
        [("purge", "report"), ("purge", "--all"), ("entity", "report", "sales", "purge"), ("dlq", "purge", "--all"), ("dlq", "replay", "--all"),
         ("dlq", "discard", "PARKED")],
        ids=" ".join,
    )  # fmt: skip
    def test_without_a_terminal_nothing_is_destroyed(self, trouble: Trouble, command: tuple[str, ...]) -> None:
        before = ask(trouble, "stats")
        (parked,) = ask(trouble, "dlq", "list", "--parked")["letters"]
        text = say(trouble, *(parked["id"] if word == "PARKED" else word for word in command), code=2)
        assert "pass --yes" in text
        assert "PARKED" not in command or f"{parked['id']}: Charge charge-995 of order:o-7, failed" in text
        after = ask(trouble, "stats")
        assert (before["dead_letters"], before["parked"]) == (after["dead_letters"], after["parked"])
        assert after["depth"] >= before["depth"]

    def test_purge_of_an_entity_counts_and_does_not_ask_about_nothing(self, trouble: Trouble) -> None:
        assert say(trouble, "entity", "order", "o-7", "purge", "--dry-run") == "order:o-7: 3 waiting commands\n"
        assert ask(trouble, "entity", "order", "o-7")["entity"]["depth"] == 3
        assert say(trouble, "entity", "order", "never", "purge") == "order:never: 0 waiting commands\n"

    def test_whoever_sits_there_is_asked(self, trouble: Trouble, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []

        def confirm(question: str) -> bool:
            asked.append(question)
            return False

        for name, value in trouble.environment.items():
            if name.startswith("COMMAND_BUS"):
                monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("typer.confirm", confirm)
        assert _in_thread(["purge", "report"]) == 1
        assert asked == ["Remove them? It cannot be undone."]


UNKNOWN = "no entity type 'acount' is known here; did you mean 'account'?"


class TestMisspelt:
    """A name that nobody knows must not look like success."""

    @pytest.mark.parametrize(
        ("command", "code", "answer"),
        [
            (("entities", "acount"), 0, "no entity matches"),
            (("entity", "acount", "a-3"), 0, "idle"),
            (("entity", "acount", "a-3", "purge"), 0, "acount:a-3: 0 waiting commands"),
            (("entity", "acount", "a-3", "resume"), 1, "was neither paused nor drained"),
            (("resume", "acount"), 1, "was neither paused nor drained"),
            (("purge", "acount"), 0, "0 waiting commands of 0 entities"),
            (("dlq", "list", "--type", "acount"), 0, "no letter matches"),
            (("dlq", "purge", "--type", "acount"), 0, "no letter matches"),
            (("events", "list", "acount"), 0, "not watched"),
        ],
    )
    def test_an_unknown_type_is_told_of(self, trouble: Trouble, command: tuple[str, ...], code: int, answer: str) -> None:
        done = trouble.run(*command)
        assert done.returncode == code, done.stderr
        assert UNKNOWN in done.stderr
        assert answer in done.stdout + done.stderr

    @pytest.mark.parametrize(
        ("command", "back", "done"),
        [
            (("pause", "acount"), ("resume", "acount"), "all acount: paused\n"),
            (("drain", "acount"), ("resume", "acount"), "all acount: draining\n"),
            (("entity", "acount", "a-3", "pause"), ("entity", "acount:a-3", "resume"), "acount:a-3: paused\n"),
            (("events", "watch", "acount"), ("events", "unwatch", "acount"), "watched: acount\n"),
        ],
    )
    def test_it_is_done_all_the_same_and_can_be_taken_back(
        self, trouble: Trouble, command: tuple[str, ...], back: tuple[str, ...], done: str
    ) -> None:
        first, again = trouble.run(*command), trouble.run(*command)
        assert (first.returncode, first.stdout, again.returncode) == (0, done, 0)
        for each in (first, again):  # being paused does not make a name known
            assert UNKNOWN in one_line(each.stderr)
            assert f"`command-bus {' '.join(back)}` takes that back" in each.stderr
        undone = trouble.run(*back)
        assert (undone.returncode, undone.stderr) == (0, "")

    def test_an_unknown_command_is_told_of(self, trouble: Trouble) -> None:
        unknown = "no command 'Chagre' is known here; did you mean 'Charge'?"
        assert unknown in say(trouble, "dlq", "list", "--command", "Chagre")
        assert unknown in say(trouble, "dlq", "replay", "--command", "Chagre")
        assert "'failed'" in say(trouble, "dlq", "list", "--reason", "faild", code=2)
        assert "did you mean 'Deposit'?" in one_line(say(trouble, "introspect", "Depost", code=1))
        assert "did you mean 'Deposit'?" in one_line(say(trouble, "send", "Depost", "{}", code=2))
        assert "did you mean 'Deposit'?" in one_line(say(trouble, "generate", "Depost", code=1))

    @pytest.mark.parametrize(
        "command",
        [("entities", "parcel"), ("entities", "~"), ("dlq", "list", "--command", "Deposit"), ("entity", "parcel", "p")],
        ids=" ".join,
    )
    def test_what_is_known_and_empty_is_not(self, trouble: Trouble, command: tuple[str, ...]) -> None:
        assert trouble.run(*command).stderr == ""

    def test_an_application_knows_its_own(self, trouble: Trouble) -> None:
        assert UNKNOWN in say(trouble, "entities", "acount", "--app", "shop")


def _in_thread(arguments: list[str]) -> int:
    """The exit code of the program, run in a thread: it runs an event loop of its own."""
    ended: Future[int] = Future()

    def run() -> None:
        try:
            main(arguments)
        except SystemExit as stop:
            ended.set_result(int(stop.code or 0))

    threading.Thread(target=run).start()
    return ended.result(30)


class TestEvents:
    def test_they_are_watched_listed_followed_and_ended(self, trouble: Trouble) -> None:
        assert "nothing is watched" in say(trouble, "events", "list")
        assert say(trouble, "events", "watch", "account", "~") == "watched: account, what has no entity\n"
        assert "acount is not watched; watched: account" in say(trouble, "events", "list", "acount")
        following = subprocess.Popen(
            [sys.executable, "-m", "command_bus", "events", "follow", "account", "--id", "e-1", "--kind", "completed", "--json"],
            env=trouble.environment, cwd=trouble.folder, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert following.stdout is not None
            lines: Future[str] = Future()
            threading.Thread(target=lambda: lines.set_result(following.stdout.readline())).start()  # type: ignore[union-attr]
            while not lines.done():
                say(trouble, "call", "Deposit", '{"account_id": "e-1", "amount": 1}')
            first = json.loads(lines.result())
            assert (first["kind"], first["entity"], first["name"]) == ("completed", "account:e-1", "Deposit")
        finally:
            following.terminate()
            following.communicate()
        say(trouble, "call", "Deposit", '{"account_id": "e-2", "amount": 1}')
        assert [each["kind"] for each in ask(trouble, "events", "list", "account", "--id", "e-2")["events"]] == [
            "accepted",
            "started",
            "completed",
        ]
        assert "account:e-2  completed  Deposit" in say(trouble, "events", "list", "account", "--id", "e-2", "--last", "1")
        assert ask(trouble, "events", "list", "~") == {"events": []}
        assert say(trouble, "events", "unwatch") == "nothing is watched\n"
        assert say(trouble, "events", "watch", "a:b", code=1).startswith("command-bus: invalid_command: ")


class TestGenerated:
    def test_client_classes_are_typed_and_work(self, trouble: Trouble) -> None:
        path = trouble.folder / "shop_client.py"
        assert "5 commands" in say(trouble, "generate", "--out", str(path))
        assert "up to date" in say(trouble, "generate", "--out", str(path), "--check")
        assert say(trouble, "generate") == path.read_text()
        use = trouble.folder / "use_client.py"
        use.write_text(
            "from command_bus import CommandBus\nfrom shop_client import Deposit, GetBalance\n\n\n"
            "async def use(bus: CommandBus) -> int:\n"
            '    await bus.call(Deposit(account_id="g-1", amount=5))\n'
            '    balance: int = await bus.call(GetBalance(account_id="g-1"))\n    return balance\n'
        )
        environment = {**trouble.environment, "MYPYPATH": str(ROOT)}
        mypy = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(trouble.folder / ".mypy"), path.name, use.name],
            cwd=trouble.folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert mypy.returncode == 0, mypy.stdout
        (trouble.folder / "pyrightconfig.json").write_text(
            json.dumps({"typeCheckingMode": "strict", "include": [path.name, use.name], "extraPaths": [str(ROOT)]})
        )
        pyright = subprocess.run(
            [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
            cwd=trouble.folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert pyright.returncode == 0, pyright.stdout
        client = _imported(path)

        async def use_it() -> int:
            async with trouble.bus() as bus:
                await bus.call(client.Deposit(account_id="g-2", amount=5), timeout=10)
                return await bus.call(client.GetBalance(account_id="g-2"), timeout=10)

        assert asyncio.run(use_it()) == 5
        with pytest.raises(ValueError, match="amount"):
            client.Deposit(account_id="g-2", amount=0)
        path.write_text("# older\n")
        assert "not what the workers announce" in say(trouble, "generate", "--out", str(path), "--check", code=1)

    def test_json_schema(self, trouble: Trouble) -> None:
        document = json.loads(say(trouble, "generate", "Deposit", "--json-schema"))
        assert document["commands"]["Deposit"]["entity"] == "account"
        assert "Refund" in say(trouble, "generate", "Refund", code=1)


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


class TestRepairing:
    """Last, and in this order: it mends what the tests above look at."""

    def test_pause_drain_and_resume_of_a_type(self, trouble: Trouble) -> None:
        send = ("send", "Deposit", '{"account_id": "r-1", "amount": 5}')
        assert say(trouble, "pause", "account", "-m", "month end") == "all account: paused\n"
        assert say(trouble, "pause", "account") == "all account: was paused already\n"
        assert "accepted" in say(trouble, *send)
        assert "all account paused" in say(trouble, "entities", "account")
        assert ask(trouble, "stats")["holds"][0]["mode"] == "paused"
        assert say(trouble, "drain", "account") == "all account: draining\n"
        assert "draining:" in one_line(say(trouble, *send, code=1))
        assert say(trouble, "resume", "account") == "all account: resumed\n"
        assert "neither" in say(trouble, "resume", "account", code=1)
        assert say(trouble, "call", "GetBalance", '{"account_id": "r-1"}') == "5\n"
        for verb in ("pause", "drain", "resume"):
            assert "the whole bus" in say(trouble, verb, "--all")

    def test_pause_drain_and_resume_of_an_entity(self, trouble: Trouble) -> None:
        assert say(trouble, "entity", "account", "r-2", "drain") == "account:r-2: draining\n"
        assert say(trouble, "entity", "account", "r-2", "pause") == "account:r-2: paused\n"
        assert say(trouble, "entity", "account", "r-2", "resume") == "account:r-2: resumed\n"
        assert "dead letter" in one_line(say(trouble, "entity", "order", "o-7", "resume", code=1))
        assert say(trouble, "entity", "account", "a-3", "resume") == "account:a-3: resumed\n"
        assert say(trouble, "call", "GetBalance", '{"account_id": "a-3"}') == "46\n"

    def test_a_parked_command_is_replayed_and_its_followers_run(self, trouble: Trouble) -> None:
        (letter,) = ask(trouble, "dlq", "list", "--parked")["letters"]
        assert "charge-995" not in say(trouble, "dlq", "replay", letter["id"], "--dry-run").replace(letter["id"], "")
        (trouble.folder / "card-reader").touch()
        assert say(trouble, "dlq", "replay", letter["id"]) == f"{letter['id']}: replayed charge-995\n"
        assert say(trouble, "call", "Charge", '{"order_id": "o-7", "cents": 1}') == '"charged"\n'
        assert ask(trouble, "entity", "order", "o-7")["entity"]["depth"] == 0

    def test_letters_and_commands_are_purged(self, trouble: Trouble) -> None:
        assert "1 letter" in say(trouble, "dlq", "purge", "--type", "parcel", "--dry-run")
        assert "1 deleted" in say(trouble, "dlq", "purge", "--type", "parcel", "--yes")
        assert "no letter matches" in say(trouble, "dlq", "replay", "--type", "parcel", "--yes")
        assert "unknown_dead_letter" in say(trouble, "dlq", "discard", "0-1-0", "--yes", code=1)
        assert "1 waiting command of 1 entity" in say(trouble, "purge", "report", "--dry-run")
        assert "1 command removed" in say(trouble, "entity", "report", "sales", "purge", "--yes")
        assert " removed" in say(trouble, "purge", "account", "--yes")
        assert " waiting command" in say(trouble, "purge", "--all", "--yes")
        left = ask(trouble, "entities")["entities"]
        assert {(each["state"], each["depth"]) for each in left if each["depth"]} == {("running", 1)}  # what runs is left alone


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    def wait(condition: Callable[[], object]) -> None:
        import time

        until = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < until, "waited in vain"
            time.sleep(0.05)

    return wait


class TestReload:
    @pytest.mark.parametrize("processes", ["1", "2"])
    def test_a_changed_file_starts_the_workers_anew(
        self, trouble: Trouble, tmp_path: Path, eventually: Callable[..., None], processes: str
    ) -> None:
        log, app = tmp_path / "log", tmp_path / "app.py"
        source = (trouble.folder / "shop.py").read_text().replace("grace=0.2", 'grace=0.2, namespace="reload"')
        app.write_text(source)
        environment = _without(trouble.environment, "COMMAND_BUS_NAMESPACE")
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "command_bus", "worker", "app", "--reload", "--processes", processes],
                cwd=tmp_path, env=environment, stdout=out, stderr=out,
            )  # fmt: skip
        try:
            count = int(processes)
            eventually(lambda: log.read_text().count("runs 5 commands") == count)
            app.write_text("this is no Python")
            eventually(lambda: "it is started again when a file changes" in log.read_text())
            app.write_text(source)
            eventually(lambda: log.read_text().count("runs 5 commands") == 2 * count)
            assert "app.py changed" in log.read_text()
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()

    def test_dev_is_server_and_worker_in_one(self, trouble: Trouble, tmp_path: Path, eventually: Callable[..., None]) -> None:
        (tmp_path / ".git").mkdir()
        (tmp_path / "app.py").write_text((trouble.folder / "shop.py").read_text())
        environment = _without(trouble.environment, "COMMAND_BUS_URL", "COMMAND_BUS_NAMESPACE")
        log = tmp_path / "log"

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "command_bus", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True,
                input="", check=False,
            )  # fmt: skip

        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "command_bus", "dev", "app"], cwd=tmp_path, env=environment, stdout=out, stderr=out
            )
        try:
            eventually(lambda: "runs 5 commands" in log.read_text())
            assert run("call", "Deposit", '{"account_id": "a", "amount": 3}').stdout == "3\n"
            assert run("workers").returncode == 0
            process.terminate()
            assert process.wait(20) == 0
            assert run("stats").returncode == 2
        finally:
            process.kill()
            process.wait()
