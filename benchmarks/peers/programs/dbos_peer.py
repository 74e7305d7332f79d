"""DBOS: workflows with five steps in one process with their caller, on SQLite, or on Postgres where `--url` says so.

A step stores what it returns. Nothing orders the workflows of an entity here: a queue with partitions would, at the price of a poll.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pwd
import shutil
import tempfile
from pathlib import Path
from typing import Any

from dbos import DBOS, DBOSConfig

from benchmarks.peers.programs.jobs import call_concurrently
from benchmarks.peers.programs.servers import Server, end_in_order, free_port, wait_for
from benchmarks.protocol import main, say

_STEPS = 5


@DBOS.step()
async def write(number: int) -> int:
    return number


@DBOS.workflow()
async def steps(number: int) -> int:
    for step in range(_STEPS):
        await write(step)
    return number


async def _call(job: dict[str, Any]) -> None:
    handle = await DBOS.start_workflow_async(steps, job["number"])
    if await handle.get_result() != job["number"]:
        raise RuntimeError("DBOS gave another result")


def _measured(given: argparse.Namespace, url: str, server: Server | None) -> float:
    """Measure; return what the server spent."""
    config: DBOSConfig = {"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR"}
    DBOS(config=config)
    DBOS.launch()
    before = server.cpu() if server else 0.0
    asyncio.run(call_concurrently(given.count, given.flight, _call))
    spent = (server.cpu() if server else 0.0) - before
    DBOS.destroy()
    return spent


def call(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = _with_postgres if given.url == "postgres" else _with_sqlite
        spent = run(given, Path(folder))
    say(server=spent, worker=0.0)  # the last word: who measures ends the program then


def _with_sqlite(given: argparse.Namespace, folder: Path) -> float:
    return _measured(given, f"sqlite:///{folder}/dbos.sqlite", None)


def _with_postgres(given: argparse.Namespace, folder: Path) -> float:
    """Run on a Postgres of its own, which does not run as root."""
    if shutil.which("initdb") is None:
        raise SystemExit("there is no initdb on PATH")
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    owner = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--pdeathsig=INT"] if user else []
    if user:
        os.chown(folder, user.pw_uid, user.pw_gid)
    port = free_port()
    made = Server([*owner, "initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "postgres"], {}, folder)
    made.wait()
    server = Server([*owner, "postgres", "-D", str(folder / "data"), "-p", str(port), "-k", str(folder)], {}, folder)
    try:
        wait_for(lambda: _connects(port))
        return _measured(given, f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres", server)
    finally:
        server.end()


def _connects(port: int) -> None:
    import psycopg

    try:
        psycopg.connect(host="127.0.0.1", port=port, user="postgres").close()
    except psycopg.OperationalError as error:
        raise OSError(str(error)) from error


if __name__ == "__main__":
    end_in_order()
    main({"call": call})
