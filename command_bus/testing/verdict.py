"""The verdict of a crash certificate: what came out different after a crash, at which line, and what would mend it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Self

Kind = Literal["repeated", "lost", "reordered", "state", "letter", "raised"]


class CodeLine(NamedTuple):
    """A line of code.

    Attributes:
        file: Its path.
        line: Its number.
        function: Qualified name of the code that it is in.
        text: The line itself.
    """

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} `{self.text}`"


class Place(NamedTuple):
    """A place where a worker can die.

    Attributes:
        how: `before` a line, `before` or `behind` a request.
        request: What the request was, or empty.
        where: The line; of a request the last one that ran before it, if there is one.
        command: Wire name of what ran, or had run last.
        nth: The number of the visit to it, from 1.
    """

    how: Literal["before", "behind"]
    request: str
    where: CodeLine | None
    command: str
    nth: int

    @property
    def goal(self) -> tuple[str, object]:
        """What is visited: the line, or the request."""
        return self.how, self.request or self.where

    def __str__(self) -> str:
        times = f", visit {self.nth}" if self.nth > 1 else ""
        if not self.request and self.where is not None:
            return f"killed before {self.where}{times}"
        at = f", behind {self.where}" if self.where is not None else ""
        return f"killed {self.how} the worker's request {self.request}{times}{at}"


class Effect(NamedTuple):
    """Something that the outside has seen.

    Attributes:
        text: Its `repr`, by which effects are compared.
        entity: The mailbox of the command that did it, or None if that is not known.
        command: That command's name.
        where: The last line of the handler's module before it.
    """

    text: str
    entity: str | None
    command: str
    where: CodeLine | None


class Letter(NamedTuple):
    """A dead letter."""

    command: str
    entity: str
    reason: str
    error: str


@dataclass(slots=True)
class Outcome:
    """All that is compared of one run of the scenario.

    Attributes:
        effects: What the outside has seen, in order.
        state: What `state` has returned.
        letters: The dead letters.
        failure: Error of the scenario, or empty.
    """

    effects: list[Effect] = field(default_factory=list[Effect])
    state: Any = None
    letters: list[Letter] = field(default_factory=list[Letter])
    failure: str = ""


@dataclass(slots=True)
class Finding:
    """A difference between a run with a crash and one without.

    Attributes:
        kind: `repeated`, `lost`, `reordered`, `state`, `letter` or `raised`.
        what: The effect, or the difference.
        command: Wire name of what did it, or was killed.
        where: The line that did it; the line of the kill where nothing was done.
        first: Place of a kill that led to it, the earliest.
        mend: What would mend it.
        places: How many places led to it.
    """

    kind: Kind
    what: str
    command: str
    where: CodeLine | None
    first: str
    mend: str
    places: int = 1

    def __str__(self) -> str:
        at = f" by {self.where}" if self.where is not None and self.kind == "repeated" else ""
        return f"{self.command}: {self.kind} {self.what}{at}; {self.first} (places: {self.places}). {self.mend}"


@dataclass(slots=True)
class HandlerPart:
    """The part of a handler in a certificate.

    Attributes:
        command: The wire name.
        handler: Its function.
        note: What was not looked at, or empty.
        places: At how many places it was killed.
    """

    command: str
    handler: str
    note: str = ""
    places: int = 0


@dataclass(slots=True)
class Verdict:
    """The findings of a certificate. It is true if it is clean.

    Attributes:
        name: Title: the test or the scenario.
        handlers: One part for each handler.
        findings: The faults, in the order of their places.
        allowed: Differences that `allows` took from them.
        contract: Differences that `at_most_once` says.
        places: Numbers: of `lines` and `requests` where a worker was killed, of those that were `missed`, as the run took another way, and
            those that were `left` out.
        seconds: Real time that it took.
    """

    name: str
    handlers: list[HandlerPart] = field(default_factory=list[HandlerPart])
    findings: list[Finding] = field(default_factory=list[Finding])
    allowed: list[Finding] = field(default_factory=list[Finding])
    contract: list[Finding] = field(default_factory=list[Finding])
    places: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("lines", "requests", "missed", "left"), 0))
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.clean

    def __repr__(self) -> str:  # what pytest shows of `assert verdict.clean, verdict`
        return "\n".join([self.summary, *(f"  {finding}" for finding in self.findings)])

    @property
    def summary(self) -> str:
        """One line."""
        said = "clean" if self.clean else f"{len(self.findings)} finding{'s' * (len(self.findings) != 1)}"
        return f"{self.name}: {said}, {self.killed} crashes in {self.seconds:.1f} s"

    @property
    def killed(self) -> int:
        """Number of crashes."""
        return self.places["lines"] + self.places["requests"]

    def allows(
        self,
        effect: str | Callable[[str], bool],
        *,
        repeated: bool = False,
        lost: bool = False,
        reordered: bool = False,
    ) -> Self:
        """Take findings about an effect from the faults; return this verdict.

        Args:
            effect: A text within the effect's `repr`, or a function that says whether it is meant.
            repeated: It may happen again.
            lost: It may be missing.
            reordered: Its order does not matter.
        """
        meant = effect if callable(effect) else lambda text: effect in text
        kinds = {kind for kind, may in (("repeated", repeated), ("lost", lost), ("reordered", reordered)) if may}
        taken = [each for each in self.findings if each.kind in kinds and meant(each.what)]
        self.findings = [each for each in self.findings if each not in taken]
        self.allowed += taken
        return self

    def data(self) -> dict[str, Any]:
        """Return it as plain values, for a page that is written elsewhere."""
        return asdict(self) | {"summary": self.summary, "clean": self.clean}


def differences(expected: Outcome, found: Outcome) -> Iterator[tuple[Kind, str, Effect | None]]:
    """Yield how a run differs from another one."""
    before, after = (Counter(effect.text for effect in outcome.effects) for outcome in (expected, found))
    latest = {effect.text: effect for effect in [*expected.effects, *found.effects]}
    for text in after - before:
        yield "repeated", text, latest[text]
    for text in before - after:
        yield "lost", text, latest[text]
    for text in _reordered(expected.effects, found.effects):
        yield "reordered", text, None
    if expected.state != found.state:
        yield "state", changed(expected.state, found.state), None
    for letter in Counter(found.letters) - Counter(expected.letters):
        yield "letter", f"of {letter.entity}, {letter.reason}: {letter.error}".rstrip(": "), None
    for letter in Counter(expected.letters) - Counter(found.letters):
        yield "letter", f"of {letter.entity} is missing, {letter.reason}", None
    if found.failure != expected.failure:
        yield "raised", found.failure or f"nothing any more: {expected.failure}", None


def _reordered(expected: Sequence[Effect], found: Sequence[Effect]) -> Iterator[str]:
    """Yield, for each entity, the effects that changed places; over all entities there is no order."""
    for entity in dict.fromkeys(effect.entity for effect in expected if effect.entity is not None):
        lines = [dict.fromkeys(each.text for each in effects if each.entity == entity) for effects in (expected, found)]
        before, after = ([text for text in line if text in lines[0] and text in lines[1]] for line in lines)
        if before != after:
            yield f"{', '.join(before)} became {', '.join(after)}"


def changed(expected: Any, found: Any) -> str:
    """Return what differs between two states, briefly."""
    if not isinstance(expected, Mapping) or not isinstance(found, Mapping):
        return f"{expected!r} became {found!r}"
    before, after = dict[Any, Any](expected), dict[Any, Any](found)
    keys = [key for key in before | after if before.get(key, ...) != after.get(key, ...)]
    return ", ".join(f"[{key!r}]: {before.get(key, 'nothing')!r} became {after.get(key, 'nothing')!r}" for key in keys)
