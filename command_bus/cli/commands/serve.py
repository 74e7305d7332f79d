"""`serve`, which serves the gateway, and `token`, which makes a token for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from command_bus.cli.connection import run_until_interrupted
from command_bus.cli.options import HostNames, Json, LogFormat, Prefix, Proxies, Target, with_target
from command_bus.cli.output import to_json
from command_bus.cli.terminal import echo, usage_error
from command_bus.errors import InvalidSettings, MissingExtra

if TYPE_CHECKING:
    from command_bus.bus import CommandBus


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
    proxies: Proxies = None,
    name: HostNames = None,
) -> None:
    """Serve the gateway: commands over HTTP, for other languages. Each request needs a token of the file.

    With --app the application's classes check the fields; without it the announced schemas do.

    \b
    Exit codes: 0 ended by Ctrl-C, 2 wrong usage or a missing package, 4 no server.
    """  # noqa: D301
    try:
        from command_bus.cli.process.logs import configure_logging
        from command_bus.gateway.tokens import read_tokens
        from command_bus.integrations.serving import checked_prefix, serve_until_stopped

        allow, trusted = read_tokens(tokens), proxies or ()
        where: Any = {"host": host, "port": port, "prefix": checked_prefix(prefix), "prefixing": trusted, "proxies": trusted}

        async def serving(bus: CommandBus) -> None:
            from command_bus.gateway.app import gateway
            from command_bus.transport.redis.acl import check_rights

            redis = bus.session.redis
            await check_rights(redis.connections, redis.keys, "gateway", "the gateway")
            app = gateway(bus, allow=allow, max_body=max_body, max_wait=max_wait, hosts=name or ())
            await serve_until_stopped(
                app, told=lambda url: echo(f"{bus.session.where}: {url}", err=True), extra="gateway", **where
            )

        configure_logging(None, LogFormat.TEXT)
        run_until_interrupted(target, serving, logs=True)
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
