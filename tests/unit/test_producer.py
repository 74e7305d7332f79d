"""The line in front of a shard, when the server leaves it in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from command_bus.clock import mono
from command_bus.errors import BusClosed, CommandBusError, TransportUnavailable, UnsuitableServer
from command_bus.transport.ports.extensions import Availability
from command_bus.transport.redis.connection.connections import ServerWatch
from command_bus.transport.redis.connection.outage_log import LoggedBackoff, OutageLog
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.scripts import ENQUEUE_ONE
from command_bus.transport.redis.sending.producer import StreamProducer
from command_bus.transport.retention import Retention
from command_bus.transport.submissions import NO_DIGEST, Admission, Submission


class Server:
    """A server that records requests, and gives planned answers."""

    label = "server"
    outage = OutageLog("server")
    watch = ServerWatch("server", lambda: asyncio.sleep(0), Availability(), fails_fast=False)
    connected = True

    def __init__(self, *answers: bytes | Exception) -> None:
        self.asked: list[tuple[int, list[bytes]]] = []
        self.again: list[int] = []
        self._answers = list(answers)

    def at(self, tag: str) -> Server:
        return self

    def post(self, script: object, keys: list[str], args: list[Any], answered: Callable[[Any], None]) -> bool:
        """Answer as a connection does, unless there is none."""
        if not self.connected:
            return False
        asyncio.get_running_loop().call_soon(answered, self.answer(script, args))
        return True

    def count_reconnect(self) -> None:
        """Nobody reads the counter."""

    async def run_confirmed(self, script: object, keys: list[str], args: list[Any], written: str) -> tuple[bytes, bool]:
        answer = self.answer(script, args)
        if isinstance(answer, Exception):
            raise answer
        return answer, True

    def answer(self, script: object, args: list[Any]) -> bytes | Exception:
        self.asked.append((args[0], args[5:6] if script is ENQUEUE_ONE else args[8:]))
        self.again.append(args[1])
        return self._answers.pop(0)


@pytest.fixture(autouse=True, params=["connected", "not connected"])
def _connected(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a batch leave at once, or with a task."""
    monkeypatch.setattr(Server, "connected", request.param == "connected")


def producer(server: Server) -> StreamProducer:
    connections: Any = server
    return StreamProducer(
        connections, KeySpace("unit", 1), max_total_depth=100, max_pending=10, retention=Retention(600_000, 60_000)
    )


def plain(name: str) -> Submission:
    return Submission(f"box:{name}", name, name.encode(), NO_DIGEST, 10, marked=False)


IN_DOUBT = TransportUnavailable("cut off", outcome_unknown=True)
REFUSED = TransportUnavailable("refused")


async def test_a_batch_in_doubt_stays_as_it_is_when_some_give_up() -> None:
    server = Server(IN_DOUBT, REFUSED, b"++")
    line = producer(server)
    hasty, patient = await asyncio.gather(line.enqueue(plain("a"), 0.02), line.enqueue(plain("b"), 5.0), return_exceptions=True)
    assert isinstance(hasty, TransportUnavailable)
    assert hasty.outcome_unknown
    assert patient is Admission.ACCEPTED
    assert server.asked == [(1, [b"a", b"b"])] * 3
    assert line._lines[0].pending == 0


async def test_a_lost_answer_is_reported_as_unknown() -> None:
    server = Server(b"+", IN_DOUBT, b"gone")
    line = producer(server)
    await line.enqueue(plain("a"), 5.0)
    with pytest.raises(TransportUnavailable) as raised:
        await line.enqueue(plain("b"), 5.0)
    assert raised.value.outcome_unknown
    assert line._lines[0].pending == 0


@pytest.mark.parametrize(
    ("before", "silence", "guarded"),
    [([b"+"], 1700.0, 1), ([b"+"], 1900.0, 0), ([b"+", b"e"], 1700.0, 1), ([b"e"], 0.0, 0), ([], 0.0, 0)],
)
async def test_a_repeated_request_is_guarded_while_its_first_answer_is_kept(
    monkeypatch: pytest.MonkeyPatch, before: list[bytes], silence: float, guarded: int
) -> None:
    server = Server(*before, IN_DOUBT, b"+")
    line = producer(server)
    for _ in before:
        await line.enqueue(plain("a"), 5.0)
    monkeypatch.setattr("command_bus.transport.redis.sending.enqueue_line.mono", lambda: mono() + silence)
    assert await line.enqueue(plain("b"), 5.0) is Admission.ACCEPTED
    assert server.again[-2:] == [0, guarded]
    assert server.asked[-1] == server.asked[-2], "the number grows on: what was stuck on its way is told by it"


async def test_an_unsent_batch_is_sent_again_without_callers_that_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(REFUSED, b"+")
    line = producer(server)
    monkeypatch.setattr(LoggedBackoff, "failed", lambda *_: 0.6)  # a pause that the hasty one does not wait for
    hasty, patient = await asyncio.gather(line.enqueue(plain("a"), 0.5), line.enqueue(plain("b"), 5.0), return_exceptions=True)
    assert isinstance(hasty, TransportUnavailable)
    assert not hasty.outcome_unknown
    assert patient is Admission.ACCEPTED
    assert server.asked == [(1, [b"a", b"b"]), (2, [b"b"])], "another batch has another number"
    assert line._lines[0].pending == 0


async def test_a_caller_that_gives_up_in_doubt_gets_unconfirmed() -> None:
    server = Server(IN_DOUBT, REFUSED, REFUSED, REFUSED)
    with pytest.raises(TransportUnavailable) as raised:
        await producer(server).enqueue(plain("a"), 0.05)
    assert raised.value.outcome_unknown


async def test_a_refusal_after_a_doubt_leaves_the_doubt() -> None:
    server = Server(IN_DOUBT, UnsuitableServer("another password"))
    with pytest.raises(TransportUnavailable) as raised:
        await producer(server).enqueue(plain("a"), 5.0)
    assert raised.value.outcome_unknown


async def test_commands_that_were_not_sent_in_time_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(b"+")
    line = producer(server)
    answer = line.enqueue(plain("a"), 10.0)
    late = mono() + 80.0
    with monkeypatch.context() as patch:
        patch.setattr("command_bus.transport.redis.sending.enqueue_line.mono", lambda: late)
        with pytest.raises(TransportUnavailable) as raised:
            await answer
    assert not raised.value.outcome_unknown
    assert server.asked == []


async def test_a_shard_that_was_silent_is_not_waited_for_again() -> None:
    server = Server(IN_DOUBT, REFUSED, b"++++++++++")
    line, silent = producer(server), dict[int, CommandBusError]()
    batch = [plain(f"a{number}") for number in range(15)]
    first = await line.enqueue_many(batch, 0.02, silent)
    assert [getattr(error, "outcome_unknown", None) for error in first] == [True] * 10 + [False] * 5
    asked = len(server.asked)
    second = await line.enqueue_many(batch[:3], 5.0, silent)
    assert [(type(error), getattr(error, "outcome_unknown", None)) for error in second] == [(TransportUnavailable, False)] * 3
    assert len(server.asked) == asked
    server._answers[:] = [b"+++"]
    assert await line.enqueue_many(batch[:3], 5.0, {}) == [Admission.ACCEPTED] * 3


async def test_a_line_that_is_full_for_a_moment_makes_no_shard_silent() -> None:
    server = Server(b"+++++", b"++++++")
    line, silent = producer(server), dict[int, CommandBusError]()
    before = [line.enqueue(plain(f"a{number}"), 5.0) for number in range(5)]
    full = await line.enqueue_many([plain(f"b{number}") for number in range(6)], 5.0, silent)
    assert all(isinstance(error, TransportUnavailable) and "5 commands of this process wait" in error.message for error in full)
    assert await asyncio.gather(*before) == [Admission.ACCEPTED] * 5
    assert await line.enqueue_many([plain(f"b{number}") for number in range(6)], 5.0, silent) == [Admission.ACCEPTED] * 6


async def test_no_more_leave_together_than_may_wait() -> None:
    server = Server(b"++++++++++", b"++++++++++", b"+++++")
    line = producer(server)
    assert line.window == 10
    assert await line.enqueue_many([plain(f"a{number}") for number in range(25)], 5.0) == [Admission.ACCEPTED] * 25
    assert [len(envelopes) for _, envelopes in server.asked] == [10, 10, 5]


async def test_a_deadline_is_encoded_again_when_a_command_is_sent_again() -> None:
    server = Server(IN_DOUBT, REFUSED, b"++")
    line, seals = producer(server), iter([b"second", b"third"])
    call = replace(plain("a"), renewed=lambda: next(seals))
    answers = await asyncio.gather(line.enqueue(call, 5.0), line.enqueue(plain("b"), 5.0))
    assert [*answers] == [Admission.ACCEPTED] * 2
    assert server.asked == [(1, [b"a", b"b"]), (1, [b"second", b"b"]), (1, [b"third", b"b"])], "the same batch"


@pytest.mark.parametrize(("seconds", "leaves"), [(0.05, b"b"), (0.15, b"anew")])
async def test_a_deadline_is_encoded_again_after_a_wait_in_line(
    monkeypatch: pytest.MonkeyPatch, seconds: float, leaves: bytes
) -> None:
    now = [mono()]
    monkeypatch.setattr("command_bus.transport.redis.sending.enqueue_line.mono", lambda: now[0])
    server = Server(b"+", b"+")
    line = producer(server)
    first = line.enqueue(plain("a"), 5.0)
    respond = server.answer

    def slowly(script: object, args: list[Any]) -> Any:
        now[0] += seconds
        if not server.asked:
            waiting.append(line.enqueue(replace(plain("b"), renewed=lambda: b"anew"), 5.0))
        return respond(script, args)

    waiting: list[Any] = []
    monkeypatch.setattr(server, "answer", slowly)
    await first
    await waiting[0]
    assert server.asked == [(1, [b"a"]), (2, [leaves])]


async def test_a_cipher_that_fails_leaves_the_envelope_as_it_was_sealed() -> None:
    def fails() -> bytes:
        raise ValueError("no key")

    server = Server(REFUSED, b"+")
    assert await producer(server).enqueue(replace(plain("a"), renewed=fails), 5.0) is Admission.ACCEPTED
    assert server.asked == [(1, [b"a"]), (1, [b"a"])]


async def test_a_task_that_is_cancelled_before_it_begins_fails_its_batch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "connected", False)
    server = Server(b"+")
    line = producer(server)
    first = line.enqueue(plain("a"), 5.0)
    await asyncio.sleep(0)
    slow = line._lines[0]._slow
    assert slow is not None
    slow.cancel()
    with pytest.raises(BusClosed):
        await first
    assert await line.enqueue(plain("b"), 5.0) is Admission.ACCEPTED
    assert line._lines[0].pending == 0


async def test_an_answer_that_comes_late_is_nobody_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was given up is sent again; then the first answer arrives, and another batch is on its way."""
    server = Server(b"+", b"e")
    server.connected = True
    line = producer(server)
    late: list[Callable[[Any], None]] = []

    def post(script: object, keys: list[str], args: list[Any], answered: Callable[[Any], None]) -> bool:
        late.append(answered)
        return True

    monkeypatch.setattr(server, "post", post)
    first = line.enqueue(plain("a"), 0.01)
    with pytest.raises(TransportUnavailable) as raised:
        await first
    assert raised.value.outcome_unknown
    await asyncio.sleep(0.05)
    second = line.enqueue(plain("b"), 5.0)
    await asyncio.sleep(0)
    late[0](b"+")
    third = line.enqueue(plain("c"), 5.0)
    await asyncio.sleep(0)
    assert (len(late), second.done(), third.done()) == (2, False, False), "one batch is on its way"
    late[1](b"e")
    late[2](b"+")
    assert (await second, await third) == (Admission.ENTITY_FULL, Admission.ACCEPTED)


async def test_a_command_that_cannot_be_packed_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(b"+", b"+")
    line = producer(server)
    respond = server.answer

    def cannot_pack(script: object, args: list[Any]) -> Any:
        if b"bad" in args:
            raise TypeError("no argument for a server")
        return respond(script, args)

    monkeypatch.setattr(server, "answer", cannot_pack)
    first = line.enqueue(plain("a"), 5.0)
    await asyncio.sleep(0)
    bad = line.enqueue(plain("bad"), 5.0)
    assert await first is Admission.ACCEPTED
    with pytest.raises(TransportUnavailable if Server.connected else CommandBusError):
        await bad
    assert await line.enqueue(plain("c"), 5.0) is Admission.ACCEPTED
    assert line._lines[0].pending == 0
