"""The application: each request becomes a command.

    uvicorn examples.fastapi_app.app:app
    command-bus worker examples.fastapi_app.app:bus

With ACCOUNTS_WORKER=1 a worker runs within the application, so that one terminal is enough.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Header
from pydantic import BaseModel

from command_bus import CommandBus
from command_bus.integrations.starlette import bus_lifespan, bus_of, exception_handlers
from examples.fastapi_app.accounts import Amount, Deposit, GetBalance, Withdraw, registry_for

__all__ = ["app", "bus", "make_app"]

Bus = Annotated[CommandBus, Depends(bus_of)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)]


class Money(BaseModel):
    """A request's body."""

    amount: Amount


def make_app(bus: CommandBus, *, worker: bool = False) -> FastAPI:
    """Make the application over a bus."""
    app = FastAPI(title="Accounts", lifespan=bus_lifespan(bus, worker=worker), exception_handlers=exception_handlers())

    @app.post("/accounts/{account_id}/deposits", status_code=202)
    async def deposit(account_id: str, money: Money, bus: Bus, key: Key = None) -> dict[str, str]:
        """Answer when the server has accepted the command, which is not carried out yet. A repeated key is a duplicate."""
        receipt = await bus.dispatch(Deposit(account_id=account_id, amount=money.amount), command_id=key)
        return {"command_id": receipt.command_id, "status": receipt.status}

    @app.post("/accounts/{account_id}/withdrawals")
    async def withdraw(account_id: str, money: Money, bus: Bus, key: Key = None) -> dict[str, int]:
        """Answer when the command is carried out, or refused with 409. A repeated key gets the stored answer."""
        return {"balance": await bus.call(Withdraw(account_id=account_id, amount=money.amount), command_id=key, timeout=10)}

    @app.get("/accounts/{account_id}")
    async def balance(account_id: str, bus: Bus) -> dict[str, int]:
        """Answer with the balance after all commands accepted before."""
        return {"balance": await bus.call(GetBalance(account_id=account_id), timeout=10)}

    return app


bus = CommandBus(namespace="accounts", registry=registry_for(Path(os.environ.get("ACCOUNTS_DB", "accounts.db"))))
app = make_app(bus, worker=os.environ.get("ACCOUNTS_WORKER") == "1")
