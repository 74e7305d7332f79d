"""`dashboard`, which serves the pages for operators, and `password`, which makes the hash of a password for it."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from getpass import getpass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from command_bus.cli.connection import run_until_interrupted
from command_bus.cli.options import HostNames, LogFormat, Prefix, Proxies, Target, with_target
from command_bus.cli.terminal import echo, usage_error
from command_bus.errors import InvalidSettings, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from command_bus.bus import CommandBus
    from command_bus.dashboard.users import Users

SECRET = "COMMAND_BUS_DASHBOARD_SECRET"  # noqa: S105 - the name of the variable
_LOCAL = ("127.0.0.1", "localhost", "::1")


class LocalRole(StrEnum):
    """The role of the person who sits at this machine."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


@with_target
def dashboard(
    *,
    target: Target,
    host: Annotated[str, Option(help="Address to listen on. An address that others can reach needs --users.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 takes any free one.")] = 8089,
    users: Annotated[str | None, Option(metavar="FILE", help="TOML of users: [ann] password = hash, role = …")] = None,
    proxy: Annotated[
        str | None,
        Option("--proxy-header", metavar="NAME", help="Header in which a proxy names who has signed in."),
    ] = None,
    proxies: Proxies = None,
    role: Annotated[
        LocalRole, Option(help="Role of all visitors without --users: from this machine, or signed in by a proxy.")
    ] = LocalRole.VIEWER,
    mask: Annotated[list[str] | None, Option(metavar="FIELD", help="Payload field shown as dots; may be repeated.")] = None,
    grafana: Annotated[str, Option(metavar="ADDRESS", help="Address of a Grafana board, which the plots link to.")] = "",
    traces: Annotated[
        str | None,
        Option(metavar="ADDRESS", help="Address of a trace with {trace_id} in it, which commands link to."),
    ] = None,
    prefix: Prefix = "",
    name: HostNames = None,
) -> None:
    """Serve the dashboard: pages for operators in a browser.

    Without users it listens on this machine only, and shows without changing anything (--role gives more). COMMAND_BUS_DASHBOARD_SECRET,
    at least 32 characters, keeps sessions over a restart, and over several processes. With --users, --proxy says which proxy may tell from
    where a request comes. With --proxy-header, the users of the file have a role and no password; others whom the proxy lets in get --role.

    \b
    Exit codes: 0 ended by Ctrl-C, 2 wrong usage or a missing package, 4 no server.
    """  # noqa: D301
    try:
        from command_bus.cli.process.logs import configure_logging
        from command_bus.dashboard.users import loopback
        from command_bus.dashboard.visit import safe_link, trace_link_of
        from command_bus.integrations.serving import checked_prefix, serve_until_stopped

        known = _users(users, proxy, proxies or (), role)
        if known is None and host not in _LOCAL:
            raise InvalidSettings(f"{host} can be reached from elsewhere: give --users FILE or --proxy-header NAME")
        options: Any = {
            "mask": mask or (),
            "hosts": name or (),
            "board_link": safe_link("--grafana", grafana),
            "trace_link": None if traces is None else trace_link_of(traces),
        }
        trusted = proxies or (("127.0.0.1", "::1") if proxy is not None else ())
        where: Any = {"host": host, "port": port, "prefix": checked_prefix(prefix), "prefixing": trusted}
        where["proxies"] = trusted if users is not None and proxy is None else ()

        async def serving(bus: CommandBus) -> None:
            from command_bus.dashboard.app import dashboard as made
            from command_bus.dashboard.masking import unknown_masks
            from command_bus.transport.redis.acl import check_rights

            redis = bus.session.redis
            await check_rights(redis.connections, redis.keys, "operator", "the dashboard")
            app = made(bus, users=known or loopback(role.value), secret=os.environ.get(SECRET), **options)
            announced = [*await bus.fleet.commands(), *await bus.fleet.events()]
            for masked in unknown_masks(mask or (), {each.name: each.schema for each in announced}):
                echo(f"--mask {masked}: no command or event that workers have announced has a field of this name", err=True)
            where["told"] = lambda url: echo(f"{bus.session.where}: {url}", err=True)
            await serve_until_stopped(app, extra="dashboard", **where)

        configure_logging(None, LogFormat.TEXT)
        run_until_interrupted(target, serving, logs=True)
    except (InvalidSettings, MissingExtra) as error:
        raise usage_error(error.message) from None


def password() -> None:
    """Print the hash of a password, for the users of the dashboard. It is asked for, or read from standard input.

    \b
    Exit codes: 0 printed, 2 wrong usage: it is too short, or was not the same twice.
    """  # noqa: D301
    from command_bus.dashboard.passwords import hash_password

    try:
        if sys.stdin.isatty():
            text = getpass("Password: ")
            if getpass("The same again: ") != text:
                raise usage_error("these are two different passwords")
        else:
            text = sys.stdin.readline().rstrip("\r\n")
        echo(hash_password(text))
    except InvalidSettings as error:
        raise usage_error(error.message) from None


def _users(file: str | None, header: str | None, proxies: Sequence[str], role: LocalRole) -> Users | None:
    from command_bus.dashboard.passwords import read_roles, read_users
    from command_bus.dashboard.users import behind_proxy
    from command_bus.integrations.web import networks_of

    networks_of(proxies)
    if header is not None:
        roles = {} if file is None else read_roles(file)
        return behind_proxy(header, roles=roles, everyone=role.value, proxies=proxies or ("127.0.0.1", "::1"))
    return None if file is None else read_users(file)
