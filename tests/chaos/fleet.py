"""The processes of a run: started, killed, stopped, replaced. Each has a proxy of its own, which its successors inherit."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.plan import Plan
from tests.chaos.preload import Clock, compiled
from tests.chaos.proxy import Proxy
from tests.chaos.resume import Requests, Up
from tests.chaos.servers import Target

__all__ = ["Fleet", "Seat"]

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 60.0


@dataclass(eq=False)
class Seat:
    """A place for one process at a time: `w1` and its processes `w1.0`, `w1.1`, …

    Attributes:
        name: Name of the seat.
        proxy: Proxy before the server, or None.
        url: URL that its processes connect to.
        clock: Clock that faults can step, or None.
        busy: Whether a fault is under way here: one at a time per seat.
        ending: Whether its process was asked to end.
        release: The handler set of a worker.
    """

    name: str
    proxy: Proxy | None
    url: str
    clock: Clock | None = None
    number: int = -1
    process: subprocess.Popen[bytes] | None = None
    busy: bool = False
    ending: bool = False
    release: str = "new"

    @property
    def who(self) -> str:
        """The process of this seat."""
        return f"{self.name}.{self.number}"

    @property
    def is_worker(self) -> bool:
        """Whether its processes are workers."""
        return self.name.startswith("w")


class Fleet:
    """All processes.

    Args:
        plan: Of the run.
        target: Where they connect to, by their proxies.
    """

    def __init__(self, plan: Plan, target: Target) -> None:
        self._plan = plan
        self._target = target
        self._folder = Path(plan.folder)
        self.requests = Requests(plan.log("producers"))
        self._up = Up([plan.log("workers"), plan.log("producers")])
        self.seats: list[Seat] = []
        self.crashes: list[str] = []

    async def start(self) -> None:
        """Start all of them; returns when they work."""
        library = compiled("clock", self._folder) if "clock" in self._plan.faults else None
        if library is None:
            self._target.missing.setdefault("clock", "no C compiler" if "clock" in self._plan.faults else "not asked for")
        names = [f"w{n}" for n in range(self._plan.workers)] + [f"p{n}" for n in range(self._plan.producers)]
        for name in names:
            proxy = None
            if self._target.address is not None:
                proxy = Proxy(self._target.address)
                await proxy.start()
            seat = Seat(name, proxy, proxy.url if proxy else self._target.url)
            if library is not None and seat.is_worker:
                seat.clock = Clock(library, self._folder / f"{name}.clock")
            self.seats.append(seat)
            self.begin(seat)
        deadline = time.monotonic() + _PATIENCE
        while not all(map(self.is_up, self.seats)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the processes did not come up: {self._last_words()}")
            await asyncio.sleep(0.02)

    @property
    def workers(self) -> list[Seat]:
        """The workers' seats."""
        return [seat for seat in self.seats if seat.is_worker]

    @property
    def producers(self) -> list[Seat]:
        """The producers' seats."""
        return [seat for seat in self.seats if not seat.is_worker]

    def begin(self, seat: Seat) -> None:
        """Start the next process of a seat."""
        seat.number += 1
        seat.ending = False
        plan = str(self._folder / "plan.json")
        if seat.is_worker:
            command = [sys.executable, "-m", "tests.chaos.worker_app", plan, seat.url, seat.who, seat.release]
        else:
            resume = self._folder / f"{seat.name}.resume"
            self.requests.leave(resume)
            command = [sys.executable, "-m", "tests.chaos.producer_app", plan, seat.url, seat.who, str(resume)]
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        environment |= seat.clock.environment if seat.clock else {}
        with (self._folder / "processes.err").open("ab") as errors:
            seat.process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=errors, stdin=subprocess.DEVNULL)

    def kill(self, seat: Seat) -> None:
        """SIGKILL the process of a seat."""
        assert seat.process is not None
        seat.ending = True
        seat.process.kill()
        seat.process.wait()

    def pause(self, seat: Seat, *, stop: bool) -> None:
        """SIGSTOP, or SIGCONT."""
        if seat.process is not None and seat.process.poll() is None:
            seat.process.send_signal(signal.SIGSTOP if stop else signal.SIGCONT)

    async def retire(self, seat: Seat) -> None:
        """SIGTERM, and wait for the end."""
        assert seat.process is not None
        seat.ending = True
        seat.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE
        while seat.process.poll() is None:
            if time.monotonic() > deadline:
                self.crashes.append(f"{seat.who} did not end within {_PATIENCE:.0f} s of SIGTERM")
                seat.process.kill()
                seat.process.wait()
                return
            await asyncio.sleep(0.02)
        too_early = seat.process.returncode == -signal.SIGTERM and not self.is_up(seat)  # that ends any program at once
        if seat.process.returncode != 0 and not too_early:
            self.crashes.append(f"{seat.who} ended with {seat.process.returncode} after SIGTERM: {self._last_words()}")

    def is_up(self, seat: Seat) -> bool:
        """Return whether the process of a seat is up and works."""
        return seat.who in self._up.now()

    def look_after(self) -> None:
        """Replace processes that ended by themselves, which is a finding."""
        for seat in self.seats:
            if seat.process is not None and not seat.ending and seat.process.poll() is not None:
                self.crashes.append(f"{seat.who} ended by itself with {seat.process.returncode}: {self._last_words()}")
                self.begin(seat)

    async def stop(self) -> None:
        """End everything at once."""
        for seat in self.seats:
            if seat.process is not None and seat.process.poll() is None:
                seat.process.kill()
                seat.process.wait()
            if seat.proxy is not None:
                await seat.proxy.stop()

    def _last_words(self) -> str:
        path = self._folder / "processes.err"
        return path.read_text(errors="replace")[-1500:] if path.exists() else ""
