"""`command-bus webhooks`: the receivers of events by HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Argument, Option

from command_bus.cli.connection import on_bus
from command_bus.cli.options import Answer, Limit, Target, command_group, with_target
from command_bus.cli.output import listing, table
from command_bus.cli.terminal import echo, escape, failure

if TYPE_CHECKING:
    from command_bus.webhooks import Delivery, WebhookInfo, Webhooks

T = TypeVar("T")
webhooks = command_group("Webhooks: list, put, remove, pause, test, deliveries.")
Name = Annotated[str, Argument(metavar="WEBHOOK", help="Name of the webhook.")]


@webhooks.command("list", short_help="List webhooks, and how far they are.")
@with_target
def list_webhooks(*, target: Target) -> Answer:
    """List webhooks with the events that they receive, and how many events became deliveries. Secrets are not shown.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301
    found = _on_hooks(target, lambda hooks: hooks.list())
    heads = ["webhook", "url", "kinds", "types", "events#", "gaps#", "pump", "paused"]
    return Answer({"webhooks": found}, table(heads, map(_row, found)))


@webhooks.command("put", short_help="Put a webhook, or change one.")
@with_target
def put_webhook(
    name: Name,
    address: Annotated[str, Argument(metavar="URL", help="Address to send to; https.")],
    *,
    kind: Annotated[list[str], Option(metavar="KIND", help="A kind of event; may be repeated.")],
    entity_type: Annotated[
        list[str] | None, Option("--type", metavar="TYPE", help="Only events of this entity type; may be repeated.")
    ] = None,
    secret_env: Annotated[str | None, Option(metavar="NAME", help="Environment variable of the workers with the secret.")] = None,
    timeout: Annotated[float, Option(help="Seconds that a request may take.")] = 5.0,
    allow_http: Annotated[bool, Option("--allow-http", help="Allow http instead of https.")] = False,
    allow_private: Annotated[bool, Option("--allow-private", help="Allow a private address.")] = False,
    target: Target,
) -> None:
    """Put a webhook. It receives events from now on; one that is changed goes on where it was, and keeps its secret.

    A new one without --secret-env gets a secret, which is printed once.

    \b
    Exit codes: 0 put, 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301
    from command_bus.webhooks import new_secret

    made = new_secret()

    async def put(hooks: Webhooks) -> bool:
        is_new = name not in {each.name for each in await hooks.list()}
        secret = f"env:{secret_env}" if secret_env is not None else made if is_new else None
        kinds: Any = kind
        await hooks.put(
            name, address, kinds=kinds, entity_types=entity_type or (), secret=secret, timeout=timeout,
            allow_http=allow_http, allow_private=allow_private,
        )  # fmt: skip
        return is_new

    is_new = _on_hooks(target, put)
    echo(f"{name}: {'put' if is_new else 'changed'}")
    if is_new and secret_env is None:
        echo(f"its secret, which is not shown again: {made}")


@webhooks.command("remove", short_help="Remove a webhook.")
@with_target
def remove_webhook(name: Name, *, target: Target) -> None:
    """Remove a webhook. Its deliveries that wait are dropped.

    \b
    Exit codes: 0 removed, 1 there is none, 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301
    if not _on_hooks(target, lambda hooks: hooks.remove(name)):
        raise failure(f"there is no webhook {name!r}: `command-bus webhooks list` names all")
    echo(f"{name}: removed")


@webhooks.command("pause", short_help="Send nothing until resume.")
@with_target
def pause_webhook(
    name: Name,
    *,
    reason: Annotated[str, Option(metavar="TEXT", help="Reason that `webhooks list` shows.")] = "paused by an operator",
    target: Target,
) -> None:
    """Send nothing until `webhooks resume`: deliveries wait, each in its line.

    \b
    Exit codes: 0 paused, 1 there is none, 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301
    _on_hooks(target, lambda hooks: hooks.pause(name, reason))
    echo(f"{name}: paused")


@webhooks.command("resume", short_help="Send again.")
@with_target
def resume_webhook(name: Name, *, target: Target) -> None:
    """Send again: what waits is sent within 15 seconds.

    \b
    Exit codes: 0 resumed, 1 there is none, 2 wrong usage, 4 no server: repeat it.
    """  # noqa: D301
    _on_hooks(target, lambda hooks: hooks.resume(name))
    echo(f"{name}: resumed")


@webhooks.command("test", short_help="Send a test through a worker.")
@with_target
def send_test(
    name: Name, *, timeout: Annotated[float, Option(help="Seconds to wait for a worker.")] = 30.0, target: Target
) -> None:
    """Send a delivery of the type webhook.test through a worker, once, paused or not.

    \b
    Exit codes: 0 taken, 1 refused or no such webhook, 2 wrong usage, 3 no worker sent it in time, 4 no server.
    """  # noqa: D301
    status = _on_hooks(target, lambda hooks: hooks.test(name, timeout=timeout))
    echo(f"{name}: answered {status}")


@webhooks.command("deliveries", short_help="List deliveries that were given up.")
@with_target
def list_deliveries(
    name: Name,
    *,
    limit: Limit = 100,
    target: Target,
) -> Answer:
    """List the deliveries of a webhook that were given up, oldest first. `dlq replay LETTER` sends one again.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301

    async def read(hooks: Webhooks) -> list[Delivery]:
        return [each async for each in hooks.deliveries(name, limit=limit)]

    found = _on_hooks(target, read)
    heads = ["letter", "about", "attempts#", "error"]
    return listing("deliveries", found, limit, heads, _delivery_row)


def _on_hooks(target: Target, act: Callable[[Webhooks], Awaitable[T]]) -> T:
    from command_bus.webhooks import Webhooks

    return on_bus(target, lambda bus: act(Webhooks(bus)))


def _row(each: WebhookInfo) -> tuple[str, str, str, str, int, int, str, str]:
    types = ", ".join(each.entity_types) or "all"
    return each.name, escape(each.url), ", ".join(each.kinds), types, each.events, each.gaps, each.pump, escape(each.paused)


def _delivery_row(each: Delivery) -> tuple[str, str, int, str]:
    return each.letter_id, escape(each.about), each.attempts, escape(each.error)
