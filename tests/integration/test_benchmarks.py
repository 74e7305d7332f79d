"""The benchmark runs from end to end, with tiny counts and without peers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.ground import Ground
from benchmarks.ground import ground as a_ground
from benchmarks.peers.cases import cases_of
from benchmarks.peers.field import Peer
from benchmarks.programs import Program, ProgramFailed

pytestmark = pytest.mark.server

CASES = [
    "dispatch, batches of 1,000", "drain, 1,000 entities, 2 processes", "drain, 1,000 entities, live", "call, 50", "wake-up", "memory, lanes",
    "floor, EVALSHA", "floor, LPUSH", "growth, backlog 10,000", "durable, a step, 1,000 entities", "durable, commands that wait",
]  # fmt: skip


@pytest.mark.slow
def test_a_tiny_run_of_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    assert benchmarks.main([*CASES, "--scale", "0.005", "--runs", "1", "--no-peers", "--json", str(file)]) == 0
    printed = capsys.readouterr()
    found = json.loads(file.read_text())
    assert not found["failed"]
    assert set(found["cases"]) == {case.name for case in benchmarks.plan(benchmarks.arguments([*CASES, "--no-peers"]))}
    drained = found["cases"]["drain, 1,000 entities, 2 processes"]
    assert all(drained[metric]["median"] > 0 for metric in ("per_s", "worker_us", "server_us", "script_us"))
    assert "drain, 1,000 entities, live" in printed.out
    assert "targets" in printed.out
    assert "run 1 of 1" in printed.err


@pytest.mark.slow
def test_the_extremes_are_measured() -> None:
    command = [sys.executable, "-m", "benchmarks.extremes", "--count", "60", "--seconds", "0.5"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert [line.split()[0] for line in printed.splitlines()] == ["purge", "due", "idle", "unknown", "unknown"]
    assert "60 parked entities in" in printed
    assert "60 entities wait for a newer worker: a call takes" in printed


def test_a_program_that_fails_says_why() -> None:
    with (
        pytest.raises(ProgramFailed, match=r"ended with code 3:\nno such queue"),
        Program([sys.executable, "-c", "import sys; sys.stderr.write('no such queue'); sys.exit(3)"]),
    ):
        pass


@pytest.fixture
def ground() -> Iterator[Ground]:
    with a_ground("embedded", 0.01) as made:
        yield made


STUB = """
import signal
from benchmarks import protocol
from benchmarks.protocol import Handled, Stretch
def fill(given):
    protocol.ready()
    with Stretch(given.count): pass
def send(given):
    protocol.ready()
    with Stretch(given.count):
        if given.flight not in (1, 500): raise ValueError(given.flight)
def work(given):
    protocol.ready()
    handled = Handled(given.count)
    for _ in range(given.count): handled()
    signal.pause()
def call(given):
    protocol.ready()
    with Stretch(given.count) as stretch:
        for _ in range(given.count): stretch.timed(0.0)
protocol.main({"fill": fill, "send": send, "work": work, "call": call})
"""


def test_a_peer_is_measured_by_what_its_program_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ground: Ground) -> None:
    program = tmp_path / "stub.py"
    program.write_text(STUB)
    peer = Peer("stub", "Python", "none", "none", concurrent=True)
    monkeypatch.setattr(Peer, "command", lambda _self: [sys.executable, str(program)])
    cases = cases_of(peer)
    assert "stub, dispatch, 500 concurrent" in [case.name for case in cases]
    for case in cases:
        assert case.measure(ground)["per_s"] > 0


def test_a_peer_of_threads_has_no_concurrent_dispatches() -> None:
    names = [case.name for case in cases_of(Peer("stub", "Python", "none", "none"))]
    assert "stub, dispatch, one by one" in names
    assert "stub, dispatch, 500 concurrent" not in names
