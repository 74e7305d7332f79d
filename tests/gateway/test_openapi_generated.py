"""Generated input: any schema that workers may announce, and requests that schemathesis makes of the gateway's own document."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from command_bus.embedded import EmbeddedServer
from command_bus.gateway.openapi import document
from command_bus.gateway.tokens import Rights
from command_bus.serialization.announced_schema import sound_schema
from tests.gateway.bank import TOKENS
from tests.gateway.serving import serving_bank
from tests.gateway.test_openapi import known, leads_somewhere

pytestmark = pytest.mark.server
KEYS = ["$ref", "$defs", "mapping", "propertyName", "properties", "anyOf", "type", "description"]
PARTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("#/$defs/A"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=12,
)


@given(PARTS)
@example({"mapping": {"$ref": {"$ref": "#/$defs/A"}}, "propertyName": None})
@example({"mapping": {"$ref": ""}})
@example({"propertyName": {"$ref": ""}})
@settings(max_examples=40)
def test_any_announced_schema_makes_a_document(part: Any) -> None:
    schema = sound_schema({"type": "object", "properties": {"x": part}, "$defs": {"A": part}})
    if schema is not None:
        assert leads_somewhere(document(known("Any", schema=schema), Rights("all", ("*",)), "/"))


@pytest.fixture(scope="module")
def served(bank_server: EmbeddedServer) -> Generator[str]:
    with serving_bank(bank_server.url, "openapi-served", max_wait=0.3) as url:
        yield url


@pytest.mark.filterwarnings("default")  # of libraries that schemathesis uses
@pytest.mark.timeout(240)
def test_the_gateway_holds_to_its_document(served: str) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    import requests

    headers = {"Authorization": f"Bearer {TOKENS['ops']}"}
    found = requests.get(f"{served}/openapi.json", headers=headers, timeout=10).json()
    streams = ("/events", "/commands/{command_id}/progress")  # they do not end
    found["paths"] = {path: each for path, each in found["paths"].items() if path not in streams}
    beyond = [schemathesis.checks.positive_data_acceptance, schemathesis.checks.not_a_server_error]
    # The bus checks more than the schemas do: an id must not be empty. And a handler may fail (502), or be late (504).
    seen: dict[str, set[int]] = {}

    def tried(operation: Any, statuses: set[int]) -> Callable[[], None]:
        @given(case=operation.as_strategy())
        @settings(max_examples=8, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))
        def run(case: Any) -> None:
            answer = case.call(base_url=served, headers=headers)
            assert answer.status_code != 500, (case.as_curl_command(), answer.text)
            case.validate_response(answer, excluded_checks=beyond)
            statuses.add(answer.status_code)

        return run

    for result in schemathesis.openapi.from_dict(found).get_all_operations():
        operation = result.ok()
        tried(operation, seen.setdefault(operation.label, set()))()
    assert len(seen) >= 12
    assert any(202 in each for each in seen.values()), seen
