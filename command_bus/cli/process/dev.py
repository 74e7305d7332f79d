"""`dev`: the development server and a supervisor in one process, so that both end together."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from command_bus.cli.process.supervisor import run_supervisor
from command_bus.cli.process.worker_options import WorkerOptions
from command_bus.cli.terminal import WorkerExitCode
from command_bus.embedded import shared_server
from command_bus.errors import CommandBusError

_log = logging.getLogger("command_bus.cli")


def run_development(options: WorkerOptions, data: Path | None) -> int:
    """Start or join this project's server, keep workers on it until asked to stop, and return the exit code."""
    os.environ.pop("REDIS_URL", None)
    try:
        url = shared_server(persistence=data)
    except CommandBusError as error:
        _log.error("%s", error.message)
        return WorkerExitCode.NOT_STARTED
    _log.info("development server: %s", url)
    return run_supervisor(replace(options, url=url))
