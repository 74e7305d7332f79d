"""The OpenAPI document: sound, of the live registry, of what the token may do; and the gateway holds to it."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus import Command, CommandBus, EntityId
from command_bus.gateway import Gateway, gateway
from command_bus.gateway.catalogue import Catalogue, KnownCommand
from command_bus.gateway.openapi import document
from command_bus.gateway.tokens import Rights
from command_bus.serialization.announcements import CommandInfo
from command_bus.serialization.json_fields import JsonFields
from tests.gateway.bank import allowed
from tests.gateway.conftest import Client

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]
ALL = Rights("all", ("*",))


async def document_of(client: Client) -> dict[str, Any]:
    answer = await client.ask("GET", "/openapi.json")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [each for part in value.values() for each in references(part)]
    return [each for part in value for each in references(part)] if isinstance(value, list) else []


def is_sound(found: dict[str, Any]) -> bool:
    """Return whether each reference leads somewhere, and each schema is one."""
    import jsonschema

    for schema in found["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    return leads_somewhere(found)


def leads_somewhere(found: dict[str, Any]) -> bool:
    names = {each.removeprefix("#/components/schemas/") for each in references(found)}
    return names <= set(found["components"]["schemas"])


async def test_it_has_the_live_registry(each_client: Client) -> None:
    found = await document_of(each_client)
    assert is_sound(found)
    deposit = found["paths"]["/commands/Deposit"]["post"]
    schema = found["components"]["schemas"]["commands.Deposit"]
    assert (deposit["operationId"], deposit["summary"]) == ("send_Deposit", "Puts money on an account.")
    assert schema["properties"]["amount"]["exclusiveMinimum"] == 0
    assert schema["required"] == ["account_id", "amount"]
    assert found["components"]["schemas"]["commands.Deposit.Reply"]["properties"]["reply"]["type"] == "integer"
    assert set(found["paths"]["/commands/GetBalance"]["post"]["responses"]) == {"200", "default"}


async def test_it_has_what_the_token_may_do(app: Gateway) -> None:
    paths = {
        name: sorted((await document_of(Client(app, name)))["paths"]) for name in ("ci", "caller", "looker", "hearer", "reader")
    }
    assert paths["ci"] == ["/commands", "/commands/Deposit"]
    assert paths["caller"] == ["/commands/Deposit", "/commands/GetBalance"]
    assert paths["looker"] == ["/commands/{command_id}", "/commands/{command_id}/progress"]
    assert paths["hearer"] == ["/events"]
    assert all(path.startswith(("/entities", "/dead-letters", "/schedules")) for path in paths["reader"])


async def test_a_command_that_joins_is_in_it(bus: CommandBus) -> None:
    from command_bus import HandlerRegistry

    registry = HandlerRegistry()

    class Later(Command[None], entity="later"):
        later_id: EntityId

    async with CommandBus(bus.url, namespace=bus.settings.namespace, registry=registry) as other:
        client = Client(gateway(other, allow=allowed()))
        assert "/commands/Later" not in (await document_of(client))["paths"]
        registry.declare(Later)
        client.app.state.catalogue._read_at = float("-inf")
        assert "/commands/Later" in (await document_of(client))["paths"]


_TYPE = {"type": "object", "properties": {"x": {"$ref": "#/$defs/Inner"}}, "$defs": {"Inner": {"type": "string"}}}


def known(*names: str, schema: Any = _TYPE) -> dict[str, KnownCommand]:
    return {
        name: KnownCommand(
            name, False, CommandInfo(name, "command", None, None, "at_least_once", {}, schema, schema, ()), JsonFields({})
        )
        for name in names
    }


async def test_names_and_definitions_do_not_meet() -> None:
    found = document(known("a/b", "a:b", "a_b", "commands.a_b"), ALL, "/bus")
    assert is_sound(found)
    assert {"/commands/a%2Fb", "/commands/a:b", "/commands/a_b"} <= set(found["paths"])
    assert len([each for each in found["components"]["schemas"] if each.endswith(".Inner")]) == 8
    assert found["servers"] == [{"url": "/bus"}]


async def test_the_catalogue_survives_an_outage(bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> None:
    from command_bus.errors import TransportUnavailable

    catalogue = Catalogue(bus)
    assert await catalogue.find("Deposit") is not None
    asked = 0

    async def away() -> Any:
        nonlocal asked
        asked += 1
        raise TransportUnavailable("away")

    monkeypatch.setattr(bus.fleet, "commands", away)
    catalogue._read_at = float("-inf")
    assert await catalogue.find("Deposit") is not None
    assert [await catalogue.find("Nothing") for _ in range(20)] == [None] * 20
    assert asked == 1  # names that are not known do not ask each time
