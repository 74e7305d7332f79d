"""The network between processes and the server: the fate of a request is drawn from the seed and the faults of its process.

A request reaches the server after a moment, and its reply takes another moment. Or one of them is lost, or the request hangs for seconds
and is executed after its sender gave up. Requests under way do not depend on whether their sender is still alive.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any

from redis import exceptions as redis_errors

from command_bus.testing.simulated.server import Link, Server
from tests.simulation.loop import SimLoop

__all__ = ["CALM", "Network", "Weather"]

PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities per request."""

    lost_request: float = 0.0
    lost_reply: float = 0.0
    slow: float = 0.0
    cut_off: bool = False
    """Nothing gets through, in either direction."""

    @property
    def fair(self) -> bool:
        """Return whether no fault can happen."""
        return not (self.lost_request or self.lost_reply or self.slow or self.cut_off)


CALM = Weather()


class Network:
    """Carries requests.

    Args:
        loop: Has the virtual time.
        server: Executes the requests.
        random: Random numbers of the seed.
    """

    def __init__(self, loop: SimLoop, server: Server, random: Random) -> None:
        self._loop = loop
        self._server = server
        self._random = random
        self._nowhere = Context()
        self._epoch = 0
        self._open: dict[int, tuple[Link, asyncio.Future[Any]]] = {}
        self.weather: dict[str, Weather] = {}
        self.faults: dict[str, int] = {}

    def count(self, fault: str) -> None:
        """Count one more."""
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def later(self, seconds: float, callback: Any, *args: Any) -> None:
        """Call back in no process."""
        self._loop.call_at(self._loop.now + seconds, callback, *args, context=self._nowhere)

    def send(self, link: Link, requests: list[list[bytes]], future: asyncio.Future[Any], patience: float) -> None:
        """Let requests travel together; the future gets the answers or an error."""
        random = self._random
        self._open[link.id] = (link, future)
        weather = self.weather.get(link.owner, CALM)
        there = 0.0002 + 0.0006 * random.random()
        if weather is not CALM and not weather.fair:
            if weather.cut_off:
                self.count("cut off")
                self.later(patience, self._fail, link, future, redis_errors.TimeoutError("no answer"))
                return
            fate = random.random()
            if fate < weather.lost_request:
                self.count("lost request")
                self._fail_soon(link, future, patience)
                return
            if fate < weather.lost_request + weather.lost_reply:
                self.count("lost reply")
                self.later(there, self._arrive, link, requests, future, True)
                self._fail_soon(link, future, patience, there)
                return
            if fate < weather.lost_request + weather.lost_reply + weather.slow:
                self.count("delay")
                there += random.choice((0.1, 1.0, 7.0)) * random.random()
        if there > patience or weather.slow:
            self.later(patience, self._fail, link, future, redis_errors.TimeoutError("no answer"))
        self.later(there, self._arrive, link, requests, future, False)

    def _fail_soon(self, link: Link, future: asyncio.Future[Any], patience: float, least: float = 0.0) -> None:
        """Break the connection; the client notices at once, or only after its timeout."""
        if self._random.random() < 0.7:
            self.later(
                least + 0.01 * self._random.random(), self._fail, link, future, redis_errors.ConnectionError("connection reset")
            )
        else:
            self.later(patience, self._fail, link, future, redis_errors.TimeoutError("no answer"))

    def _arrive(self, link: Link, requests: list[list[bytes]], future: asyncio.Future[Any], reply_is_lost: bool) -> None:
        now = self._loop.now
        if link.gone:
            self._fail(link, future, redis_errors.ConnectionError("connection reset"))
            return
        if now < self._server.down_until:
            link.gone = True
            self._fail(
                link, future, redis_errors.ConnectionError("Error 111 connecting to simulated server. Connection refused.")
            )
            return
        reply = _nothing if reply_is_lost else lambda answers: self._answer(link, future, answers)
        self._server.execute(link, requests, reply)

    def _answer(self, link: Link, future: asyncio.Future[Any], answers: list[Any]) -> None:
        """Send a reply. Replies of blocking reads meet faults too: their data is off the server already."""
        weather = self.weather.get(link.owner, CALM)
        if link.broken or weather.cut_off:
            return  # the server has said it into a dead connection
        back = 0.0002 + 0.0006 * self._random.random()
        if weather.slow and self._random.random() < weather.slow / 2:
            self.count("slow reply")
            back += self._random.choice((0.1, 1.0, 7.0)) * self._random.random()
        self.later(back, self._deliver, link, future, answers)

    def _deliver(self, link: Link, future: asyncio.Future[Any], answers: list[Any]) -> None:
        self._open.pop(link.id, None)
        if not future.done() and not link.broken:
            future.set_result(answers)

    def _fail(self, link: Link, future: asyncio.Future[Any], error: Exception) -> None:
        self._open.pop(link.id, None)
        if not future.done():
            future.set_exception(error)

    def close(self, link: Link, *, noticed_after: float) -> None:
        """Close the client's end; the server notices later."""
        link.broken = True
        self._open.pop(link.id, None)
        self.later(noticed_after, self._server.cut, link)

    def notice(self) -> float:
        """Return the seconds until the server learns that a connection has ended: mostly at once, sometimes only in a while."""
        return 0.001 if self._random.random() < 0.7 else 3.0 * self._random.random()

    def drop_connections(self, owner: str, *, noticed_after: float) -> int:
        """Break what is under way of a process."""
        broken = [(link, future) for link, future in self._open.values() if link.owner == owner]
        for link, future in broken:
            self.close(link, noticed_after=noticed_after)
            self._fail(link, future, redis_errors.ConnectionError("connection reset"))
        return len(broken)

    def restart_server(self, seconds: float) -> None:
        """Break all connections; the server is down for a while and loses its scripts."""
        self._server.down_until = self._loop.now + seconds
        for link, future in list(self._open.values()):
            link.gone = True
            self._fail(link, future, redis_errors.ConnectionError("connection reset"))
        self._server.restart()


def _nothing(answers: list[Any]) -> None:
    """Drop a reply."""
