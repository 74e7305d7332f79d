"""The web application: it sends commands, and knows no handler.

uvicorn examples.shop.web:app
"""

from __future__ import annotations

from fastapi import FastAPI

from command_bus.integrations.starlette import bus_lifespan, exception_handlers
from examples.shop.bus import bus
from examples.shop.commands import PlaceOrder

__all__ = ["app"]

app = FastAPI(lifespan=bus_lifespan(bus), exception_handlers=exception_handlers())


@app.post("/orders/{order_id}")
async def post_order(order_id: str, article: str, pieces: int = 1) -> dict[str, str]:
    state = await bus.call(
        PlaceOrder(order_id=order_id, article=article, pieces=pieces),
        command_id=f"order-{order_id}",
        timeout=15,
    )
    return {"state": state}
