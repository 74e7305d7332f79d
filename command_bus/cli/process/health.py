"""Probes and metrics of the program, served by one worker process, or by a supervisor for several.

The supervisor asks its processes, each of which serves probes on a port of its own on the loopback address. It is live if no process is
stuck, ready if all processes run and are ready, and its metrics are those of all, with the label `process`. A process that has died does
not fail the liveness probe, because the supervisor restarts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

from command_bus.cli.process.worker_options import WorkerOptions
from command_bus.errors import MissingExtra
from command_bus.session import Session
from command_bus.telemetry.pages import Page, PageServer, text_page

_ANSWER_WITHIN = 3.0  # seconds; a process answers within two, even if its event loop is stuck
_log = logging.getLogger("command_bus.cli")


def give_metrics(session: Session) -> None:
    """Count in metrics what happens, if prometheus-client is installed and the application has given no observer."""
    if session.observer is None:
        try:
            from command_bus.telemetry.metrics import PrometheusMetrics

            session.observer = PrometheusMetrics()
        except MissingExtra as error:
            _log.info("no /metrics: %s", error)


@dataclass(frozen=True, slots=True)
class ProbedProcess:
    """A worker process that the supervisor probes.

    Attributes:
        index: Its number, from 0. A process that replaces it has the same.
        pid: Its process id.
        port: Number at which its probes are served; None until it has reported one.
        ready: Whether it runs commands.
    """

    index: int
    pid: int
    port: int | None
    ready: bool


class _ProbeAnswer(NamedTuple):
    process: ProbedProcess
    status: int
    text: str


async def serve_supervisor_probes(options: WorkerOptions, processes: Callable[[], list[ProbedProcess]]) -> PageServer:
    """Serve probes of all processes, until the returned server is stopped.

    Raises:
        InvalidSettings: The port is taken.
    """
    wanted = options.processes

    async def page(path: str) -> Page:
        found = sorted(processes(), key=lambda process: process.index)
        match path:
            case "/healthz":
                return _liveness_page(await _ask_all(found, path))
            case "/readyz":
                return _readiness_page(await _ask_all(found, path), wanted)
            case "/metrics":
                return _metrics_page(await _ask_all(found, path))
            case _:
                return text_page(HTTPStatus.NOT_FOUND, "there are /healthz, /readyz and /metrics")

    server = PageServer(page, host=options.health_host, port=options.health_port or 0)
    _log.info("health on port %d", await server.start())
    return server


async def _ask_all(processes: list[ProbedProcess], path: str) -> list[_ProbeAnswer]:
    return await asyncio.gather(*(_ask(process, path) for process in processes if process.port is not None))


async def _ask(process: ProbedProcess, path: str) -> _ProbeAnswer:
    """Request a page from a process; the status is 0 if it has died, 504 if it does not answer."""
    try:
        async with asyncio.timeout(_ANSWER_WITHIN):
            reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                answer = await reader.read(-1)
            finally:
                writer.close()
    except TimeoutError:
        return _ProbeAnswer(process, HTTPStatus.GATEWAY_TIMEOUT, "it does not answer")
    except OSError:
        return _ProbeAnswer(process, 0, "it is gone")
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    status = int(words[1]) if len(words) == 3 and words[1].isdigit() else 0
    return _ProbeAnswer(process, status, body.decode(errors="replace").strip())


def _liveness_page(answers: list[_ProbeAnswer]) -> Page:
    stuck = [answer for answer in answers if answer.status not in (HTTPStatus.OK, 0)]
    return _page(stuck, "live")


def _readiness_page(answers: list[_ProbeAnswer], wanted: int) -> Page:
    bad = [answer for answer in answers if answer.status != HTTPStatus.OK]
    missing = wanted - len(answers)
    if missing > 0:
        lines = [f"{missing} of {wanted} processes are not started", *map(_line, bad)]
        return text_page(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(lines))
    return _page(bad, "ready")


def _page(bad: list[_ProbeAnswer], good: str) -> Page:
    if bad:
        return text_page(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(map(_line, bad)))
    return text_page(HTTPStatus.OK, good)


def _line(answer: _ProbeAnswer) -> str:
    return f"process {answer.process.pid}: {answer.text}"


def _metrics_page(answers: list[_ProbeAnswer]) -> Page:
    good = [answer for answer in answers if answer.status == HTTPStatus.OK]
    try:
        from command_bus.telemetry.metrics import PrometheusMetrics, merge_expositions
    except MissingExtra as error:
        return text_page(HTTPStatus.NOT_FOUND, error.message)
    body = merge_expositions({str(answer.process.index): answer.text + "\n" for answer in good})
    return Page(HTTPStatus.OK, body, PrometheusMetrics.content_type)
