"""The table *values × ways of JSON*: a value in JSON's form arrives as the same value of the same class, or is refused at once with a typed
error, with the command's class and without it. It is never accepted and then unreadable, never silently another.

**A row** is that of `values.py`. Its form is what `json_form` makes of what travels (docs/wire-format.md): what a reply shows, and what an edit
begins with. **A way** is a function here with `@way`; `AMBIGUOUS` has the rows of which JSON's form is that of several values.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from typer import Exit

from command_bus import HandlerRegistry, every
from command_bus.cli.codegen.clients import generate_clients
from command_bus.cli.codegen.typescript_types import typescript_source
from command_bus.cli.commands.send import announced_fields, fields_from, message_from_class
from command_bus.errors import CommandBusError, RegistrationError
from command_bus.gateway import Grant, gateway, new_token, tokens
from command_bus.gateway.catalogue import Catalogue, KnownCommand
from command_bus.serialization.announcements import CommandInfo, read_description
from command_bus.serialization.json_fields import JsonFields
from command_bus.serialization.json_forms import json_form, read_json
from command_bus.serialization.json_schemas import reply_schema
from command_bus.serialization.models import codec_for, reply_codec_for
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.schema_check import schema_problems
from command_bus.testing import TestBus
from command_bus.worker.worker_bus import describe_message
from tests.gateway.node import compiled, run_node
from tests.selection import quick
from tests.tables.carriers import NOTHING, SOON, Bench, Carrier, carrier_of
from tests.tables.shapes import shape
from tests.tables.test_values import _handlers
from tests.tables.values import ROWS

TOKEN = new_token()
AMBIGUOUS = (
    "Any {",
    "Any frozenset",
    "a model under Any",
    "dict {'a': None, 'b': {1, 2}}",
    "dict {'a': Decimal",
    "str | bytes",
    "datetime.date | datetime",
    "datetime.datetime | datetime",
    "list[int] | set",
)
"""Begins of rows whose JSON is that of another value, too: what no type says, or a choice of types with one form. JSON says the plainer one."""
AT_EACH_CONSTRUCTION = (
    "FutureDatetime",
    "a validator before",
    "a validator after that adds",
    "a model whose validator changes",
    "a field that the constructor leaves out",
)
"""Begins of rows whose class makes something else of what it is given each time that it is made."""


class Refused(CommandBusError):
    """The gateway or the command line refused it."""


def text_of(carrier: Carrier) -> str:
    """Return the command's fields as JSON."""
    return json.dumps(json_form(unpack(codec_for(carrier.carry).encode(carrier.carrying()))))


def info_of(bench: Bench, carrier: Carrier) -> CommandInfo:
    record = describe_message(carrier.carry, bench.bus.bus.settings)
    info = None if record is None else read_description(carrier.carry.spec().name, record, ())
    if info is None:
        raise Refused("it is not announced")
    return info


WAYS: dict[str, Callable[[Bench], Awaitable[None]]] = {}


def way(function: Callable[[Bench], Awaitable[None]]) -> Callable[[Bench], Awaitable[None]]:
    WAYS[function.__name__] = function
    return function


async def _posted(bench: Bench, *, batch: bool, write: Callable[[Carrier], str] = text_of) -> None:
    transport = httpx.ASGITransport(gateway(bench.bus.bus, allow=tokens({"all": Grant(TOKEN, ("*",))})))
    head = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(transport=transport, base_url="http://bus", headers=head) as client:

        async def send(carrier: Carrier) -> None:
            name, text = carrier.carry.spec().name, write(carrier)
            body = f'{{"commands": [{{"name": "{name}", "fields": {text}}}]}}' if batch else text
            answer = await client.post("/commands" if batch else f"/commands/{name}", content=body)
            if answer.status_code >= 500:
                raise AssertionError(answer.text)
            if answer.status_code >= 400 or (batch and answer.json()["rejected"]):
                raise Refused(answer.text)

        await bench.come(send)


@way
async def gateway_with_class(bench: Bench) -> None:
    await _posted(bench, batch=False)


@way
async def gateway_batch_with_class(bench: Bench) -> None:
    await _posted(bench, batch=True)


@way
async def gateway_announced(bench: Bench) -> None:
    await _announced_post(bench, batch=False)


@way
async def gateway_batch_announced(bench: Bench) -> None:
    await _announced_post(bench, batch=True)


async def _announced_post(bench: Bench, *, batch: bool) -> None:
    def announced(catalogue: Catalogue, kind: Any) -> KnownCommand:
        record = describe_message(kind, bench.bus.bus.settings)
        info = None if record is None else read_description(kind.spec().name, record, ())
        return KnownCommand(
            kind.spec().name, False, info, JsonFields({} if info is None else info.schema), None if info else kind
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Catalogue, "_own", announced)
        await _posted(bench, batch=batch)


@way
async def command_line_with_class(bench: Bench) -> None:
    async def send(carrier: Carrier) -> None:
        message = message_from_class(bench.bus.bus, carrier.carry.spec().name, fields_from(text_of(carrier)))
        assert message is not None
        await bench.bus.dispatch(message)

    await bench.come(_at_the_line(send))


@way
async def command_line_announced(bench: Bench) -> None:
    async def send(carrier: Carrier) -> None:
        name = carrier.carry.spec().name
        raw = await announced_fields(bench.bus.bus, name, fields_from(text_of(carrier)))
        await bench.bus.bus.dispatch_raw(raw.entity_type, raw.entity_id, name, raw.payload, version=raw.version)

    await bench.come(_at_the_line(send))


@way
async def schedules_put(bench: Bench) -> None:
    async def put(carrier: Carrier) -> None:
        name = carrier.carry.spec().name
        raw = await announced_fields(bench.bus.bus, name, fields_from(text_of(carrier)))
        plan = f"s{carrier.number}", raw.entity_type, raw.entity_id, name, raw.payload, every(60)
        await bench.bus.bus.schedules.put_raw(*plan, version=raw.version)

    for carrier in bench.carriers:
        with bench.sent(carrier):
            await _at_the_line(put)(carrier)
    time.sleep(SOON)
    await bench.bus.advance(70)


@way
async def edited_letter(bench: Bench) -> None:
    async def fail(carrier: Carrier) -> None:
        await bench.bus.dispatch(carrier.message(carrier.carry, value=carrier.row.make(), fails=2))

    await bench.come(fail)
    letters = {letter.name: letter.id async for letter in bench.bus.bus.dead_letters.list()}
    for carrier in bench.carriers:
        name = carrier.carry.spec().name
        if name in letters:
            with bench.sent(carrier):
                await bench.bus.bus.dead_letters.replay(letters[name], payload=read_json(text_of(carrier)))
    await bench.bus.run_until_idle(timeout=60)


@way
async def typescript_client(bench: Bench) -> None:
    """Let each command be sent by a line of TypeScript, which compiles, and post what the client writes."""
    infos: dict[str, CommandInfo] = {}
    lines: dict[str, str] = {}
    for carrier in bench.carriers:
        with suppress(CommandBusError, ValidationError):
            info, text = info_of(bench, carrier), text_of(carrier)
            infos[info.name] = info
            lines[info.name] = f"await client.send({json.dumps(info.name)}, {text});"
    with TemporaryDirectory() as folder:
        head, tail = CAPTURING
        use = "\n".join([head, *lines.values(), tail])
        done = compiled(Path(folder), bus=typescript_source(list(infos.values()), "bank"), use=use)
        lacking = [list(lines)[int(line) - head.count("\n") - 2] for line in re.findall(r"use.ts.(\d+),", done.stdout)]
        written = json.loads(run_node(Path(folder, "out", "use.js")))

    def write(carrier: Carrier) -> str:
        name = carrier.carry.spec().name
        if name in lacking:
            raise Refused("it does not compile")
        return str(written[name]) if name in written else text_of(carrier)

    bench.left_out.add("int | float 1.0")  # a number of JavaScript is one type
    await _posted(bench, batch=False, write=write)


CAPTURING = (
    """import { Client } from "./bus.js";
const written: { [name: string]: unknown } = {};
const client = new Client({ url: "http://bus", token: "t", fetch: async (input, init) => {
  written[String(input).split("/").at(-1) ?? ""] = init?.body;
  return new Response("{}");
} });""",
    "console.log(JSON.stringify(written));",
)


@way
async def generated_class(bench: Bench) -> None:
    """Read what travels by the generated class; what that sends is read by the worker."""

    async def send(carrier: Carrier) -> None:
        info = info_of(bench, carrier)
        clients = generate_clients([info], "x")
        if clients.refused:
            raise Refused(str(clients.refused))
        module = ModuleType(f"clients_{carrier.number}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, module.__name__, module)
            exec(clients.source, module.__dict__)
            mine = getattr(module, info.name)
            mine.model_rebuild()
        message = codec_for(mine).validate(unpack(codec_for(carrier.carry).encode(carrier.carrying())))
        fields = unpack(codec_for(mine).encode(message))
        await bench.bus.bus.dispatch_raw(info.entity, fields["box"], info.name, fields)

    await bench.come(send)


def _at_the_line(send: Callable[[Carrier], Awaitable[None]]) -> Callable[[Carrier], Awaitable[None]]:
    async def sent(carrier: Carrier) -> None:
        try:
            await send(carrier)
        except Exit as error:
            raise Refused(f"exit {error.exit_code}") from error

    return sent


def _defined() -> list[Carrier]:
    found: list[Carrier] = []
    for number, row in enumerate(ROWS):
        try:
            found.append(carrier_of(number, row))
        except RegistrationError:
            continue
    return found


@pytest.mark.parametrize(
    "name",
    quick(WAYS, ["gateway_with_class", "gateway_announced", "command_line_with_class", "generated_class", "typescript_client"]),
)
async def test_json_arrives_as_its_value_or_is_refused(name: str) -> None:
    carriers, refused = _defined(), dict[str, Any]()
    arrived: dict[str, Any] = {}
    registry = HandlerRegistry()
    for carrier in carriers:
        for handler in _handlers(carrier, arrived, refused):
            registry.add(handler)
    async with TestBus(registry) as bus:
        bench = Bench(bus, carriers, arrived, {})
        await bus.run_until_idle()  # a worker announces its commands
        await WAYS[name](bench)
    found = refused | arrived | bench.outcomes
    verdicts = {
        each.row.name: _verdict_of(each, found.get(each.row.name, NOTHING))
        for each in carriers
        if each.row.name not in bench.left_out
    }
    assert list(verdicts.values()).count("same") > len(carriers) / 2
    wrong = [
        f"{row}: {verdict}"
        for row, verdict in verdicts.items()
        if verdict not in ("same", "given") and not row.startswith(AMBIGUOUS + AT_EACH_CONSTRUCTION)
    ]
    assert not wrong, f"{len(wrong)} of {len(carriers)}:\n" + "\n".join(wrong)


def _verdict_of(carrier: Carrier, found: Any) -> str:
    """Return what became of a value. It is compared with what travels: whether that is what was sent, is another table's."""
    try:
        codec: Any = codec_for(carrier.carry)
        sent = codec.decode(codec.encode(carrier.carrying())).value
    except (CommandBusError, ValidationError):
        return "given"  # there is no JSON of it
    if found is NOTHING:
        return "accepted, and never arrived"
    if isinstance(found, CommandBusError | ValidationError):
        return "given"
    same = shape(found) == shape(sent) or (type(found) is type(sent) and found == sent)
    return "same" if same else f"another: {str(shape(sent))[:80]} -> {str(shape(found))[:80]}"


@pytest.mark.parametrize("carrier", _defined(), ids=lambda carrier: str(carrier.row))
def test_a_reply_is_what_its_schema_says(carrier: Carrier) -> None:
    try:
        travels = unpack(reply_codec_for(carrier.row.kind).encode(carrier.row.make()))
    except Exception as error:
        pytest.skip(str(error)[:100])
    schema = reply_schema(carrier.row.kind)
    if schema is None:
        pytest.skip("JSON Schema lacks it")
    if str(carrier.row).startswith(("NaN", "infinity", "model_construct", "Json")):
        pytest.xfail("JSON or its schema lacks it, or the worker lets it through")
    assert not schema_problems(json_form(travels), schema)
