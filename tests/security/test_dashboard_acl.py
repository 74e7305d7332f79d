"""The rights of the dashboard: those of an operator are enough for every page and act, and others may not write its audit log."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_bus import CommandBusError
from tests.conformance.conftest import Starter
from tests.security.acl_users import Park, Work, made

pytest.importorskip("jinja2")

from command_bus.dashboard import User, dashboard, host_check
from tests.dashboard.conftest import Browser, page_text
from tests.dashboard.test_pages import READ


@pytest.mark.parametrize("selectors", [True, False], ids=["selectors", "patterns"])
async def test_an_operator_s_rights_serve_every_page_and_act(binary: Path, start: Starter, selectors: bool) -> None:
    async with made(start(tcp=True, binary=binary), selectors=selectors) as place:
        async with (
            place.bus("producer", history="1 h") as producer,
            place.bus("operator") as operator,
            place.bus("worker") as workers,
        ):
            await operator.events.watch()
            async with workers.worker():
                await producer.dispatch(Park(line="p"), command_id="parks")
                await producer.dispatch(Work(line="a", number=1), command_id="done", keep_result=True)
                await operator.entity("line", "q").pause("by hand")
                await producer.dispatch(Work(line="q", number=1))
                await producer.result("done", timeout=5)
                browser = Browser(dashboard(operator, users=host_check(lambda _: User("ada", "admin"))))
                paths = [path for path in READ if "id=" not in path and "name=" not in path and path != "/checks"]
                for path in [*paths, "/entity?type=line&id=p", "/command?id=done", "/letters?name=Park", "/search?q=p"]:
                    answer = await browser.get(path)
                    assert answer.status_code in (200, 303), (path, page_text(answer.text))
                letter = (await operator.dead_letters.page()).letters[0]
                await browser.page(f"/letter?id={letter.id}")
                for act, fields in (
                    ("entity.pause", {"type": "line", "id": "x"}),
                    ("entity.purge", {"type": "line", "id": "q", "typed": "1"}),
                    ("letters.replay", {"name": "Park"}),
                    ("limit.put", {"name": "bus", "rate": "100"}),
                    ("events.watch", {"type": "line"}),
                ):
                    done = await browser.do(act, **fields)
                    assert done.status_code == 303, (act, page_text(done.text))
                await operator.trends.keep(await operator.stats())
        assert await place.denied() == []
        async with place.bus("operator") as operator:  # it looks for what it may not see, and says so
            page = page_text(await Browser(dashboard(operator, users=host_check(lambda _: User("ada", "admin")))).page("/checks"))
            assert "this user may not" in page


@pytest.mark.parametrize("role", ["producer", "pipeline", "worker"])
async def test_others_neither_read_nor_write_the_audit_log(binary: Path, start: Starter, role: str) -> None:
    async with made(start(tcp=True, binary=binary), selectors=True) as place:
        async with place.bus("worker") as workers, workers.worker():
            await workers.ping()
        async with place.bus(role, dispatch_timeout=0.5) as bus:  # type: ignore[arg-type]
            for asked in (bus.audit.write("eve", "pause", "x", "y"), bus.audit.page(), bus.trends.list()):
                with pytest.raises(CommandBusError, match=r"NOPERM|permission"):
                    await asked
