"""Faults of processes and server: a plan drawn from the seed, executed at its times."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.network import CALM, Weather

if TYPE_CHECKING:
    from tests.simulation.loop import Process
    from tests.simulation.simulation import Simulation

__all__ = ["Nemesis"]


class Nemesis:
    """Injects faults."""

    def __init__(self, simulation: Simulation, random: Random) -> None:
        self._simulation = simulation
        self._random = random
        self._kinds: list[tuple[Any, int]] = [
            (self._kill, 3),
            (self._stop, 3),
            (self._block, 1),
            (self._weather, 5),
            (self._cut_off, 2),
            (self._drop, 2),
            (self._jump, 4 if simulation.jumps else 0),
            (self._flush, 1),
            (self._restart, 1),
            (self._deploy, 2),
        ]

    async def run(self, faults: int, seconds: float) -> None:
        """Inject `faults` in `seconds`; return when all are over."""
        random, loop = self._random, self._simulation.loop
        begin = loop.time()
        kinds, weights = [kind for kind, _ in self._kinds], [weight for _, weight in self._kinds]
        tasks = []
        for moment in sorted(random.random() * seconds for _ in range(faults)):
            await asyncio.sleep(max(0.0, begin + moment - loop.time()))
            fault = random.choices(kinds, weights)[0]
            tasks.append(asyncio.get_running_loop().create_task(fault()))
        for task in tasks:
            await task

    def _tell(self, kind: str, what: str) -> None:
        self._simulation.network.count(kind)
        self._simulation.history.note("", f"*** {what}")

    def _worker(self) -> Process:
        return self._random.choice(self._simulation.workers)

    def _anyone(self) -> Process:
        return self._random.choice([*self._simulation.workers, *self._simulation.workers, *self._simulation.producers])

    async def _trouble(self, process: Process, kind: str, seconds: float) -> None:
        now = self._simulation.loop.time()
        later = 7.0 if kind in ("weather", "cut off") else 0.0  # what is under way takes so long at most
        process.troubles.append((kind, now, now + seconds + later))
        await asyncio.sleep(seconds)

    async def _kill(self) -> None:
        process = self._worker() if self._random.random() < 0.85 else self._random.choice(self._simulation.producers)
        if process.dead:
            return
        self._tell("kill", f"{process} is killed")
        process.kill()
        now = self._simulation.loop.time()
        process.troubles.append(("kill", now, 1e9))
        self._simulation.network.drop_connections(process.name, noticed_after=self._random.choice((0.0, 0.0, 3.0)))
        if process in self._simulation.workers:
            await asyncio.sleep(self._random.choice((0.05, 0.5, 1.0)))
            self._simulation.replace(process)

    async def _stop(self) -> None:
        """SIGSTOP and SIGCONT: shorter or longer than a lease."""
        process = self._worker() if self._random.random() < 0.8 else self._anyone()
        seconds = self._simulation.history.lease * self._random.choice((0.2, 0.8, 1.2, 1.6, 2.5))
        if process.main.state:
            return
        self._tell("pause", f"{process} stands still for {seconds:.2f} s")
        process.hold(process.main, process.thread)
        await self._trouble(process, "pause", seconds)
        lanes = [process.main, process.thread]
        self._random.shuffle(lanes)  # of its loop and its threads, either may be the first to go on
        process.go_on(*lanes)
        self._simulation.history.note("", f"*** {process} goes on")

    async def _block(self) -> None:
        """Block the loop as a handler might; the renewing thread goes on."""
        process = self._worker()
        seconds = self._simulation.history.lease * self._random.choice((0.3, 1.0, 2.0))
        if process.main.state:
            return
        self._tell("block", f"the loop of {process} is blocked for {seconds:.2f} s")
        process.hold(process.main)
        await self._trouble(process, "block", seconds)
        process.go_on(process.main)

    async def _weather(self) -> None:
        process, random = self._anyone(), self._random
        if process.name in self._simulation.network.weather:
            return
        weather = Weather(random.choice((0.0, 0.1, 0.4)), random.choice((0.1, 0.3, 0.6)), random.choice((0.0, 0.2, 0.5)))
        seconds = random.uniform(0.3, 3.0)
        self._simulation.history.note("", f"*** bad weather at {process} for {seconds:.2f} s")
        await self._spell(process, weather, "weather", seconds)

    async def _cut_off(self) -> None:
        process = self._anyone()
        if process.name in self._simulation.network.weather:
            return
        seconds = self._simulation.history.lease * self._random.choice((0.3, 1.0, 2.5, 4.0))
        self._tell("partition", f"{process} is cut off for {seconds:.2f} s")
        self._simulation.network.drop_connections(process.name, noticed_after=seconds)
        await self._spell(process, Weather(cut_off=True), "cut off", seconds)

    async def _spell(self, process: Process, weather: Weather, kind: str, seconds: float) -> None:
        self._simulation.network.weather[process.name] = weather
        await self._trouble(process, kind, seconds)
        self._simulation.network.weather.pop(process.name, CALM)
        self._simulation.history.note("", f"*** {process} is reached again")

    async def _drop(self) -> None:
        process = self._anyone()
        late = self._random.choice((0.0, 0.0, 0.5, 3.0))
        count = self._simulation.network.drop_connections(process.name, noticed_after=late)
        process.troubles.append(("drop", self._simulation.loop.time(), self._simulation.loop.time() + 1.0))
        self._tell("connections dropped", f"{count} connections of {process} break, the server learns of it {late} s later")

    async def _jump(self) -> None:
        seconds = self._simulation.history.lease * self._random.choice((-30.0, -1.0, -0.3, 0.3, 0.7, 1.0, 3.0, 20.0))
        self._tell("clock jump", f"the server's clock jumps by {seconds:.2f} s")
        self._simulation.history.jumps.append((self._simulation.loop.time(), seconds))
        self._simulation.server.jump(seconds)

    async def _flush(self) -> None:
        self._tell("script flush", "SCRIPT FLUSH")
        self._simulation.server.scripts.flush()

    async def _restart(self) -> None:
        seconds = self._random.choice((0.02, 0.3, 1.0, 3.0))
        self._tell("server restart", f"the server is away for {seconds} s")
        now = self._simulation.loop.time()
        for process in self._simulation.history.processes:
            process.troubles.append(("server", now, now + seconds))
        self._simulation.network.restart_server(seconds)
        await asyncio.sleep(seconds)

    async def _deploy(self) -> None:
        """Stop one worker in order, and start another in its place."""
        process = self._worker()
        if process.main.state:
            return
        grace = self._random.choice((0.0, 0.1, 5.0))
        self._tell("deploy", f"{process} is stopped with {grace} s of grace")
        process.troubles.append(("stop", self._simulation.loop.time(), 1e9))
        self._simulation.stop(process, grace)
        self._simulation.replace(process)
