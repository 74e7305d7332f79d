"""Makes the pictures of docs/dashboard.md from a shop in trouble: `python -m scripts.screenshots`, in the repository's environment.

It needs chromium (`apt-get install chromium`), and takes half a minute. Look at the pictures before they are committed.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import sys
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.async_api import Browser, async_playwright

from command_bus import CommandBus
from command_bus.admin.audit import TrendPoint
from command_bus.clock import wall_ms
from command_bus.dashboard import dashboard, loopback
from command_bus.embedded import EmbeddedServer
from command_bus.serialization.msgpack import pack
from tests.dashboard.troubled_shop import make_trouble, open_shop, until

FOLDER = Path(__file__).resolve().parent.parent / "docs"
PORT = 8093
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync")
WIDE, PHONE = {"width": 1180, "height": 760}, {"width": 390, "height": 760}
SHOTS = (
    ("standing", "/", "light", WIDE),
    ("entity", "/entity?type=order&id=o-1001", "dark", WIDE),
    ("edit", "/act?act=letter.edit", "light", WIDE),
    ("throughput", "/throughput", "light", WIDE),
    ("phone", "/", "dark", PHONE),
)
"""Name, address, theme and size of each picture."""


async def past(bus: CommandBus) -> None:
    """Write figures of the last two hours, as a dashboard that was open would have."""
    last = wall_ms() // 60_000 * 60_000
    accepted = settled = failed = letters = 0
    for minute in range(120, 0, -1):
        busy = int(900 + 260 * math.sin(minute / 14) + 90 * math.sin(minute / 3))
        late = 55 < minute < 80
        accepted += busy
        settled += int(busy * 0.6) if late else min(accepted - settled - 40, busy + 600)
        failed, letters = failed + (14 if late else minute % 3), 0 if minute == 50 else letters + (14 if late else minute % 3)
        depth = accepted - settled
        point = TrendPoint(
            last - minute * 60_000, accepted=accepted, settled=settled, completed=settled - failed, dead_lettered=failed, retried=failed * 3,
            depth=depth, in_flight=96 if depth > 100 else 40, oldest_age=depth / 90, parked=2 if late else 0, dead_letters=letters, workers=1,
        )  # fmt: skip
        data = pack({name: getattr(point, name) for name in TrendPoint.__slots__})
        await bus.transport.operator.history.append("trends", data, kept=2880, once_ms=point.at_ms)


async def shoot(browser: Browser, bus: CommandBus) -> None:
    details = await bus.entity("order", "o-1001").show()
    for name, path, theme, size in SHOTS:
        page = await browser.new_page(color_scheme=theme, viewport=size, device_scale_factor=1.5)  # type: ignore[arg-type]
        where = f"{path}&id={details.entity.letter_id}" if path.endswith("letter.edit") else path
        await page.goto(f"http://127.0.0.1:{PORT}{where}")
        await page.wait_for_timeout(400)
        file = FOLDER / f"dashboard-{name}.png"
        await page.screenshot(path=file, full_page=name != "phone")
        Image.open(file).convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(file, optimize=True)
        print(f"{file.name}: {file.stat().st_size // 1024} KiB")
        await page.close()


async def main() -> None:
    chromium = shutil.which("chromium") or sys.exit("there is no chromium: apt-get install chromium")
    with EmbeddedServer.start() as server:
        async with open_shop(server.url) as (bus, _):
            await past(bus)
            await make_trouble(bus)
            app = dashboard(bus, users=loopback("admin"), mask=["card"])
            serving = uvicorn.Server(uvicorn.Config(app, port=PORT, log_level="error", timeout_graceful_shutdown=1))
            task = asyncio.create_task(serving.serve())

            async def started() -> bool:
                return serving.started

            await until(started)
            await asyncio.sleep(6)  # so that what has just begun counts as standing
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
                await shoot(browser, bus)
                await browser.close()
            serving.should_exit = True
            await task


if __name__ == "__main__":
    asyncio.run(main())
