"""Parts of the dashboard without a server: masking, words, plots, figures, shared reads."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from xml.etree import ElementTree as ET

import pytest

from command_bus import InvalidCommand, InvalidSettings
from command_bus.admin.audit import TrendPoint
from command_bus.admin.events import CommandEvent
from command_bus.dashboard.masking import HIDDEN, MASK, Masking, unknown_masks
from command_bus.dashboard.pages.commands import attempts_of
from command_bus.dashboard.pages.throughput import Line, clock, line_plot, nice_top, quantiles, rates, spread
from command_bus.dashboard.pulse import SharedReads
from command_bus.dashboard.words import TONES, _environment, ago, count, span, stamp, tone, when
from command_bus.messages.event import Publish
from command_bus.serialization.msgpack import pack
from command_bus.spelling import several_names

PAYLOAD = {
    "card": "4111-1111",
    "who": {"Card": "5500-0000", "name": "Ann"},
    "rows": [{"card": "3400-0000"}, 2],
    "at": datetime(2026, 11, 23, tzinfo=UTC),
    "cents": Decimal("19.99"),
    "id": UUID(int=7),
    "raw": b"\x00\xff",
    "wait": timedelta(seconds=90),
}


def test_masked_fields_are_hidden_at_any_depth() -> None:
    shown = Masking(["card"]).shown("Charge", PAYLOAD)
    assert not [secret for secret in ("4111", "5500", "3400") if secret in shown]
    assert shown.count(MASK) == 3
    assert '"name": "Ann"' in shown
    assert "4111" not in Masking(["Charge.card"]).shown("Charge", PAYLOAD)
    assert "4111" in Masking(["Refund.card"]).shown("Charge", PAYLOAD)


def test_masked_values_are_hidden_in_errors() -> None:
    masking = Masking(["card"])
    assert masking.text("Charge", PAYLOAD, "no 4111-1111, nor 3400-0000") == f"no {MASK}, nor {MASK}"
    assert masking.text("Charge", None, "no 4111-1111") == HIDDEN
    assert Masking().text("Charge", None, "no 4111-1111") == "no 4111-1111"
    assert masking.headers({"CARD": "4111", "x": "1"}) == {"CARD": MASK, "x": "1"}


def test_an_edited_payload_keeps_what_was_not_changed() -> None:
    masking = Masking(["card"])
    shown = json.loads(masking.shown("Charge", PAYLOAD))
    assert masking.edited("Charge", PAYLOAD, shown) == PAYLOAD
    shown["who"]["name"] = "Bob"
    shown["cents"] = "20.00"
    edited = masking.edited("Charge", PAYLOAD, shown)
    assert edited == {**PAYLOAD, "who": {"Card": "5500-0000", "name": "Bob"}, "cents": "20.00"}
    assert isinstance(edited["at"], datetime)
    shown["card"] = "4222"
    assert masking.edited("Charge", PAYLOAD, shown)["card"] == "4222"


LIST = {"rows": [{"id": 1, "card": "4111-1111"}, {"id": 2, "card": "5500-0000"}, 7], "card": "3400-0000"}


def test_masked_values_in_lists_go_with_their_items() -> None:
    masking = Masking(["card"])
    shown = json.loads(masking.shown("Charge", LIST))
    first, second, last = shown["rows"]
    assert masking.edited("Charge", LIST, {**shown, "rows": [second]})["rows"] == LIST["rows"][1:2]
    swapped = masking.edited("Charge", LIST, {**shown, "rows": [last, second, first]})
    assert swapped == {**LIST, "rows": LIST["rows"][::-1]}
    given = {**first, "id": 3, "card": "4222"}
    assert masking.edited("Charge", LIST, {**shown, "rows": [given, 8]})["rows"] == [given, 8]
    flag = {"flag": False, "card": "4111-1111"}
    assert masking.edited("Charge", flag, {"flag": 0, "card": MASK})["flag"] is not False


@pytest.mark.parametrize(
    ("edited", "place"),
    [
        ({"rows": [{"id": 3, "card": MASK}]}, "rows[0].card"),
        ({"rows": [7, {"id": 1, "card": MASK}], "copy": {"card": MASK}}, "copy.card"),
        ({"note": MASK}, "note"),
        ({"note": f"card {MASK}"}, "note"),
        ({"rows": [MASK]}, "rows[0]"),
        ({"rows": {"card": MASK}}, "rows.card"),
    ],
)
def test_a_mask_that_stands_for_no_value_is_refused(edited: dict[str, object], place: str) -> None:
    with pytest.raises(InvalidCommand, match=re.escape(f"{place} has {MASK}")):
        Masking(["card"]).edited("Charge", LIST, edited)
    alike = {"rows": [{"card": "4111-1111"}, {"card": "5500-0000"}]}
    with pytest.raises(InvalidCommand, match=re.escape("rows[0].card")):
        Masking(["card"]).edited("Charge", alike, {"rows": [{"card": MASK}]})


def test_keys_that_are_numbers_stay_so() -> None:
    payload = {"cards": {1: {"card": "4111-1111", "cents": 5}, 2: {"card": "5500-0000", "cents": 6}}}
    shown = json.loads(Masking(["card"]).shown("Charge", payload))
    shown["cards"]["2"]["cents"] = 7
    cards = Masking(["card"]).edited("Charge", payload, shown)["cards"]
    assert cards == {1: payload["cards"][1], 2: {"card": "5500-0000", "cents": 7}}


@pytest.mark.parametrize(
    ("value", "text", "shown"),
    [
        ("a\nb'c\"d", "bad: 'a\\nb\\'c\"d'", f"bad: '{MASK}'"),
        ("Zürich 7", '{"card": "Z\\u00fcrich 7"}', f'{{"card": "{MASK}"}}'),
        (b"4111-1111", "no 4111-1111, b'4111-1111', NDExMS0xMTEx", f"no {MASK}, b'{MASK}', {MASK}"),
        (b"\xff\xfe\xfd\xfc", "b'\\xff\\xfe\\xfd\\xfc' //79/A== fffefdfc", f"b'{MASK}' {MASK} {MASK}"),
        ("a b&c", "?card=a+b%26c or a%20b%26c", f"?card={MASK} or {MASK}"),
        ("4111", "basic NDExMQ", f"basic {MASK}"),
        ("123", "cvc 123 of line 1234, '123'", f"cvc {MASK} of line 1234, '{MASK}'"),
        (7, "7 of 17", f"{MASK} of 17"),
        (True, "it is True, and TrueType", f"it is {MASK}, and TrueType"),
        (None, "None of it", "None of it"),
        ("", "nothing", "nothing"),
        ("4111-1111", "does not answer for 4111-1", f"does not answer for {MASK}"),
        ("4111-1111", "does not answer for 411", "does not answer for 411"),
        ({"number": "4111-1111", "cvc": "77"}, "4111-1111/77", f"{MASK}/{MASK}"),
    ],
)
def test_masked_values_are_found_in_errors_in_all_their_forms(value: object, text: str, shown: str) -> None:
    assert Masking(["card"]).text("Charge", {"card": value}, text) == shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, ""),
        (0.012, "12 ms"),
        (1.26, "1.3 s"),
        (59, "59 s"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (90_061, "1 d 1 h"),
        (-3, "0 ms"),
        (0, "0 s"),
    ],
)
def test_spans_are_read_by_people(seconds: float | None, words: str) -> None:
    assert span(seconds) == words


def test_times_and_numbers_are_read_by_people() -> None:
    assert (ago(1_000, 62_000), ago(62_000, 1_000), ago(0), ago(None), ago(1_000, 1_500)) == (
        "1 min 1 s ago",
        "in 1 min 1 s",
        "",
        "",
        "now",
    )
    assert when(1_700_000_000_000) == "2023-11-14 22:13:20"
    assert stamp(1_700_000_000_123) == "2023-11-14T22:13:20.123+00:00"
    assert when(2**62) == "9999-12-31 23:59:59"
    assert (count(12_345), count(0.5), count(None), count(1234.5)) == ("12,345", "0.5", "", "1,234")
    assert (tone("parked"), tone("never heard")) == ("bad", "calm")
    words = [word for each in TONES.values() for word in each]
    assert len(words) == len(set(words))


@pytest.mark.parametrize(("most", "top"), [(0, 1), (1, 1), (3, 5), (7, 10), (12, 20), (0.3, 0.5), (5000, 5000), (5001, 10_000)])
def test_an_axis_ends_at_a_round_number(most: float, top: float) -> None:
    assert nice_top(most) == pytest.approx(top)


@pytest.mark.parametrize(
    ("most", "names"),
    [
        (0, ("0 s", "1 s")),
        (0.03, ("0 ms", "50 ms")),
        (1.5, ("0 ms", "2000 ms")),
        (73, ("0 s", "100 s")),
        (900, ("0 min", "20 min")),
        (40_000, ("0 h", "20 h")),
        (400_000, ("0 d", "5 d")),
    ],
)
def test_an_axis_of_times_has_one_unit(most: float, names: tuple[str, str]) -> None:
    drawn = figure("line_plot", line_plot("Wait", [0, 60_000], [Line("s", [0, most])], seconds=True))
    ticks = [each.text for each in drawn.findall("svg/text") if each.attrib["text-anchor"] == "end"]
    assert (ticks[0], ticks[2]) == names
    assert _top(drawn) >= 0, "no line leaves the plot"


def figure(macro: str, *given: Any) -> ET.Element:
    """Return what a macro draws."""
    drawn = getattr(_environment().get_template("plots.html").module, macro)(*given)
    assert "style=" not in drawn
    return ET.fromstring(str(drawn))


def _top(drawn: ET.Element) -> float:
    path = drawn.find("svg/g/path")
    assert path is not None
    return min(float(point.split(" ")[1]) for point in path.attrib["d"].replace("M", "").split("L"))


def test_plots_are_pictures_with_a_name_and_gaps() -> None:
    plot = line_plot("<Rate>", [0, 60_000, 120_000, 180_000], [Line("a & b", [1, None, 3, 5])])
    drawn = figure("line_plot", plot)
    path = drawn.find("svg/g/path")
    assert path is not None
    assert path.attrib["d"].count("M") == 2
    assert drawn.find("svg").attrib["aria-label"] == "<Rate>"  # type: ignore[union-attr]
    assert "".join(drawn.itertext()).endswith("a & b 5")
    bars = figure("bars", "b", *spread([0.001, 0.05, 0.06, 1e9]))
    assert [each.attrib["height"] for each in bars.findall("svg/rect")] == ["74.0", "148.0", *["0.0"] * 4, "74.0"]
    figure("bars", "none", *spread([]))
    figure("line_plot", line_plot("empty", [], [Line("none", [])]))


@pytest.mark.parametrize("minutes", [1, 5, 59, 600, 2880])
def test_the_times_below_a_plot_differ(minutes: int) -> None:
    first = 1_700_000_000_000
    assert len(set(clock(first, first + minutes * 60_000))) == 3


def test_rates_are_of_a_minute_and_gaps_are_gaps() -> None:
    points = [
        TrendPoint(at, settled=number) for at, number in ((0, 10), (60_000, 40), (180_000, 100), (900_000, 500), (960_000, 3))
    ]
    assert rates(points, "settled") == [None, 30.0, 30.0, None, None]


def test_quantiles() -> None:
    found = quantiles([float(number) for number in range(100)])
    assert found is not None
    assert (found.half, found.p95, found.p99) == (50.0, 95.0, 99.0)
    assert quantiles([]) is None


def event(kind: str, attempt: int, at: int, command_id: str = "c", delay: float | None = None) -> CommandEvent:
    return CommandEvent(kind, at, "e", "t", "i", command_id, "N", attempt, 0, "w", delay, "", "", "")  # type: ignore[arg-type]


def test_attempts_are_put_together_from_events() -> None:
    events = [
        event("accepted", 0, 0), event("started", 1, 100), event("retried", 1, 300, delay=0.5), event("started", 1, 150, "other"),
        event("started", 2, 800), event("parked", 2, 900), event("replayed", 0, 1000), event("started", 1, 1100),
    ]  # fmt: skip
    found = attempts_of(events[::-1], "c")
    assert [(each.number, each.seconds, each.end, each.pause) for each in found] == [
        (1, 0.2, "retried", 0.5),
        (2, 0.1, "parked", None),
        (1, None, "", None),
    ]
    assert [(each.number, each.end) for each in attempts_of([event("interrupted", 3, 5)], "c")] == [(3, "interrupted")]


async def test_what_several_ask_for_at_once_is_read_once() -> None:
    reads, calls = SharedReads(fresh=60), 0

    async def read() -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        return calls

    assert await asyncio.gather(*(reads.get("a", read) for _ in range(50))) == [1] * 50
    assert await reads.get("b", read) == 2
    reads.forget()
    assert await reads.get("a", read) == 3


async def test_a_read_that_failed_is_not_kept() -> None:
    reads = SharedReads(fresh=60)

    async def fails() -> int:
        raise OSError

    async def works() -> int:
        return 1

    with pytest.raises(OSError):
        await reads.get("a", fails)
    assert await reads.get("a", works) == 1
    for number in range(500):
        await SharedReads.get(reads, number, works)


def test_one_text_is_one_name_and_not_its_letters() -> None:
    assert "4111" not in Masking("card").shown("Charge", PAYLOAD)
    assert several_names("hosts", "ops.example") == ("ops.example",)
    wrong: list[Any] = [[""], [5], ["card", " "]]
    for given in wrong:
        with pytest.raises(InvalidSettings, match="give names"):
            Masking(given)


def test_a_mask_that_no_command_has_is_named() -> None:
    schemas = {
        "Charge": {"properties": {"card": {}, "who": {"$ref": "#/$defs/Who"}}, "$defs": {"Who": {"properties": {"name": {}}}}},
        "Broken": {"properties": 5, "items": ["x"]},
    }
    names = ["card", "CARD", "Charge.card", "name", "cart", "Charge.cart", "Refund.card"]
    assert unknown_masks(names, schemas) == ["cart", "Charge.cart", "Refund.card"]


def test_fields_of_an_event_are_masked_in_its_deliveries_and_before_it_is_published() -> None:
    fields, masking = {"account": "a-1", "card": "4111"}, Masking(["account.deposited.card"])
    assert json.loads(masking.line("account.deposited@ledger", fields)) == {"account": "a-1", "card": MASK}
    assert masking.text("account.deposited@ledger", fields, "card 4111") == f"card {MASK}"
    assert masking.edited("account.deposited@ledger", fields, {"account": "a-1", "card": MASK}) == fields
    packed = {"event": "account.deposited", "payload": pack(fields), "options": {}}
    name = Publish.spec().name
    for each in (masking, Masking(["card"])):
        assert json.loads(each.shown(name, packed))["payload"] == {"account": "a-1", "card": MASK}
        assert each.text(name, packed, "card 4111") == f"card {MASK}"
    for odd in (b"\xc1", "text", None):
        assert json.loads(masking.line(name, {**packed, "payload": odd}))["payload"] == MASK
