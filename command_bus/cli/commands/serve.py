"""`serve`, which serves the gateway, and `token`, which makes a token for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from command_bus.cli.connection import open_bus, run_until_interrupted
from command_bus.cli.options import Json, Prefix, Target, with_target
from command_bus.cli.output import to_json
from command_bus.cli.terminal import echo, usage_error
from command_bus.errors import InvalidSettings, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from command_bus.gateway.tokens import Tokens


@with_target
def serve(
    *,
    target: Target,
    tokens: Annotated[str, Option(metavar="FILE", help="TOML of tokens: [ci] token = hash, rights = […], rate = …")],
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 takes any free one.")] = 8088,
    max_body: Annotated[int, Option(min=1, help="Most bytes of a request's body.")] = 1024 * 1024,
    max_wait: Annotated[float, Option(min=0.1, help="Seconds that a request may wait for an outcome.")] = 60.0,
    prefix: Prefix = "",
    proxies: Annotated[
        list[str] | None,
        Option("--proxy", metavar="ADDRESS", help="Address or network of a proxy, whose headers are trusted."),
    ] = None,
    name: Annotated[
        list[str] | None,
        Option("--name", metavar="HOST", help="Host name that requests may use; others are refused."),
    ] = None,
) -> None:
    """Serve the gateway: commands over HTTP, for other languages. Each request needs a token of the file.

    With --app the application's classes check the fields; without it the announced schemas do.

    \b
    Exit codes: 0 ended by Ctrl-C, 2 wrong usage or a missing package, 4 no server.
    """  # noqa: D301
    try:
        from command_bus.gateway.tokens import read_tokens
        from command_bus.integrations.serving import checked_prefix

        limits = {"max_body": max_body, "max_wait": max_wait, "hosts": name or ()}
        served = {"prefix": checked_prefix(prefix), "prefixing": proxies or (), "proxies": proxies or ()}
        run_until_interrupted(_serving(target, read_tokens(tokens), (host, port), served, limits))
    except (InvalidSettings, MissingExtra) as error:
        raise usage_error(error.message) from None


def token(*, as_json: Json = False) -> None:
    """Print a new token, and its hash for the file of tokens. The token is shown this once.

    \b
    Exit codes: 0 printed, 2 a missing package.
    """  # noqa: D301
    try:
        from command_bus.gateway.tokens import hash_token, new_token
    except MissingExtra as error:
        raise usage_error(error.message) from None
    made = new_token()
    hashed = hash_token(made)
    if as_json:
        echo(to_json({"token": made, "hash": hashed}))
    else:
        echo(f"token  {made}")
        echo(f"hash   {hashed}")


def _serving(
    target: Target, allow: Tokens, address: tuple[str, int], served: dict[str, Any], options: dict[str, Any]
) -> Callable[[], Awaitable[None]]:
    async def serving() -> None:
        from command_bus.gateway.app import gateway
        from command_bus.integrations.serving import serve_until_stopped

        async with open_bus(target) as bus:
            app = gateway(bus, allow=allow, **options)
            where = bus.session.where
            await serve_until_stopped(app, *address, lambda url: echo(f"{where}: {url}", err=True), extra="gateway", **served)

    return serving
