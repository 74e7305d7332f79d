"""The gateway: commands over HTTP, for other languages, as an ASGI application (extra `gateway`).

    app.mount("/bus", gateway(bus, allow=tokens({"ci": Grant(CI_TOKEN, ("send:Deposit", "look"))})))

or `command-bus serve --tokens tokens.toml`. It uses the bus as any application does. `app.py` puts it together, `incoming.py` reads a request,
`problems.py` says what went wrong.
"""

from __future__ import annotations

from command_bus.errors import MissingExtra

try:
    import starlette as _starlette
except ImportError as error:  # pragma: no cover - depends on the environment
    raise MissingExtra("command_bus.gateway needs Starlette: pip install 'command-bus[gateway]'") from error

from command_bus.gateway.app import Gateway, gateway
from command_bus.gateway.tokens import Grant, Tokens, hash_token, new_token, tokens

__all__ = ["Gateway", "Grant", "Tokens", "gateway", "hash_token", "new_token", "tokens"]

del _starlette
