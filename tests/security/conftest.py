"""Servers with users and certificates of their own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from command_bus.embedded import find_server_binary
from scripts.redis62 import BINARY as OLDEST
from tests.conformance.conftest import Starter, start

__all__ = ["start"]

REDIS = shutil.which("redis-server")
OPENSSL = shutil.which("openssl")


@pytest.fixture
def oldest() -> Path:
    """Redis 6.2, which has no selectors."""
    return OLDEST if OLDEST.exists() else pytest.skip("no Redis 6.2: python3 scripts/redis62.py")


@pytest.fixture(params=["redis", "valkey"])
def binary(request: pytest.FixtureRequest) -> Path:
    """Return each available server program."""
    if request.param == "valkey":
        return find_server_binary()
    return Path(REDIS or pytest.skip("no redis-server on PATH"))


@dataclass(frozen=True)
class Certificates:
    """Two authorities that do not know each other, and what the first has signed."""

    folder: Path

    def __getattr__(self, name: str) -> Path:
        return self.folder / f"{name.replace('_', '-')}.pem"


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run([str(OPENSSL), *words], cwd=folder, check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """`ca`, `foreign` (authorities), `server` (for 127.0.0.1), `elsewhere` (for another host), `client`; each with its `…_key`."""
    if OPENSSL is None:
        pytest.skip("no openssl program on PATH to make certificates with")
    folder = tmp_path_factory.mktemp("certificates")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for name in ("ca", "foreign"):
        _openssl(
            folder, "req", "-x509", *curve, "-keyout", f"{name}-key.pem", "-out", f"{name}.pem", "-days", "2", "-subj", f"/CN={name}",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip
    for name, host in (("server", "IP:127.0.0.1"), ("elsewhere", "DNS:elsewhere.example"), ("client", "DNS:client.example")):
        _openssl(folder, "req", "-new", *curve, "-keyout", f"{name}-key.pem", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / f"{name}.ext").write_text(f"subjectAltName={host}\nauthorityKeyIdentifier=keyid\n")
        _openssl(
            folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "2",
            "-out", f"{name}.pem", "-extfile", f"{name}.ext",
        )  # fmt: skip
    return Certificates(folder)


@dataclass(frozen=True)
class TlsServer:
    """A server that listens with TLS, and for tests on a unix socket."""

    port: int
    url: str


@pytest.fixture
def tls(start: Starter, certificates: Certificates) -> Callable[..., TlsServer]:
    """Start a server with TLS: `tls(certificate="server", clients="no")`; the plain way in is its own unix socket."""
    if REDIS is None:
        pytest.skip("no redis-server on PATH; the embedded server is built without TLS")
    program = Path(REDIS)

    def started(*, certificate: str = "server", clients: str = "no") -> TlsServer:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        folder = certificates.folder
        config = {
            "tls-port": str(port),
            "tls-cert-file": str(folder / f"{certificate}.pem"),
            "tls-key-file": str(folder / f"{certificate}-key.pem"),
            "tls-ca-cert-file": str(certificates.ca),
            "tls-auth-clients": clients,
            "bind": "127.0.0.1",
        }
        start(binary=program, config={name: value for name, value in config.items() if name != "bind"})
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return TlsServer(port, f"rediss://127.0.0.1:{port}")
        raise AssertionError("the server does not listen")

    return started
