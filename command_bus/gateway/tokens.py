"""`Tokens`: who may use the gateway, and for what."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from command_bus.clock import mono
from command_bus.errors import InvalidSettings
from command_bus.integrations.web import RereadFile, read_tables
from command_bus.messages.message import is_entity_type, is_wire_name
from command_bus.spelling import did_you_mean


class Rate:
    """A rate of one token, in this process.

    Args:
        per_second: How many requests, on average; a second's worth may come at once.
    """

    __slots__ = ("_full", "_left", "_per_second", "_since")

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._full = max(per_second, 1.0)
        self._left = self._full
        self._since = mono()

    def wait(self) -> float:
        """Take one request. Return 0, or the seconds after which there is room for it."""
        now = mono()
        self._left = min(self._full, self._left + (now - self._since) * self._per_second)
        self._since = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._per_second

    def take(self, count: int) -> None:
        """Take further ones, of a request that counts for several. The bucket may be in debt for them, and refuses until it is paid."""
        self._left -= count


def checked_rate(name: str, rate: object) -> float | None:
    """Return a rate, or None.

    Raises:
        InvalidSettings: It is no positive number.
    """
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate) or rate <= 0:
        raise InvalidSettings(f"the rate of {name!r} is {rate!r}: requests a second, a positive number")
    return float(rate)


ACTS = ("send", "call", "publish", "look", "cancel", "events", "inspect", "read")
"""The rights that there are: to dispatch, to wait for a reply, to publish an event, to see one command by its id, to cancel one, to hear
events, to read what operators read, to read the states of entities."""
_OF_ONE: Mapping[str, Callable[[str], bool]] = {
    "send": is_wire_name,
    "call": is_wire_name,
    "publish": is_wire_name,
    "read": is_entity_type,
}
_ALL = "*"


class Rights:
    """Acts that somebody may do.

    Args:
        name: What messages call the token.
        given: `send`, `call`, `publish`, `look`, `cancel`, `events`, `inspect`, `read`, or `*` for all; `send:Deposit` and `call:Deposit` are
            for one command, `publish:account.deposited` for one event, `read:account` for one entity type.

    Raises:
        InvalidSettings: One is no right.
    """

    __slots__ = ("_acts", "_commands")

    def __init__(self, name: str, given: Iterable[str]) -> None:
        if isinstance(given, str):
            raise InvalidSettings(f'the rights of {name!r}: a list of them, as in ("{given}",)')
        self._acts: set[str] = set()
        self._commands: set[tuple[str, str]] = set()
        for right in given:
            self._add(name, right)
        if not self._acts and not self._commands:
            raise InvalidSettings(f"{name!r} has no rights: name what it may do, or leave it out")

    def may(self, act: str, command: str | None = None) -> bool:
        """Return whether they may do this, of a command to it."""
        return act in self._acts or (command is not None and (act, command) in self._commands)

    def may_some(self, act: str) -> bool:
        """Return whether they may do this to any command."""
        return act in self._acts or any(each == act for each, _ in self._commands)

    def _add(self, name: str, right: object) -> None:
        act, colon, command = right.partition(":") if isinstance(right, str) else ("", "", "")
        if right == _ALL:
            self._acts.update(ACTS)
        elif act not in ACTS:
            raise InvalidSettings(f"{name!r} has the right {right!r}: one of {', '.join(ACTS)}, *{did_you_mean(act, ACTS)}")
        elif not colon or command == _ALL:
            self._acts.add(act)
        elif act not in _OF_ONE or not _OF_ONE[act](command):
            raise InvalidSettings(
                f"{name!r} has the right {right!r}: send, call, publish may be for one command or event, by its wire name, read for one entity type"
            )
        else:
            self._commands.add((act, command))


_LEAST = 20
_LONGEST_TOKEN = 512
_PREFIX = "sha256$"
_HASH = re.compile(r"sha256\$[A-Za-z0-9_-]{43}")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What may stand behind `Bearer` (RFC 6750)."""


def new_token() -> str:
    """Return a token that did not exist before."""
    return f"cb_{secrets.token_urlsafe(32)}"


def hash_token(token: str) -> str:
    """Return the hash of a token, for `Grant` and for a file of tokens.

    Raises:
        InvalidSettings: It is too short, too long, or has characters that no token may have.
    """
    if not isinstance(token, str) or not _LEAST <= len(token) <= _LONGEST_TOKEN or _TOKEN.fullmatch(token) is None:
        raise InvalidSettings(
            f"a token has {_LEAST} to {_LONGEST_TOKEN} of letters, digits and . _ ~ + / -: make one with `command-bus token`"
        )
    return f"{_PREFIX}{base64.urlsafe_b64encode(digest_of(token.encode())).decode().rstrip('=')}"


def checked_hash(name: str, text: object) -> str:
    """Return a hash of this form.

    Raises:
        InvalidSettings: It is none: a token in clear text, for example.
    """
    if not isinstance(text, str) or _HASH.fullmatch(text) is None:
        raise InvalidSettings(f"the token of {name!r} is not a hash: make both with `command-bus token`, or use hash_token(…)")
    return text


def digest_of(token: bytes) -> bytes:
    """Return the digest by which a token is found."""
    return hashlib.sha256(token).digest()


_SCHEME = b"bearer "
_LONGEST = 600


class Grant(NamedTuple):
    """A token and what it allows.

    Attributes:
        token: What its holder sends, or the hash of that as `command-bus token` prints it.
        rights: As `Rights` takes them: `("send:Deposit", "look")`, or `("*",)` for all.
        rate: Requests a second in each process; None: as many as come. Each command of a batch counts.
    """

    token: str
    rights: tuple[str, ...]
    rate: float | None = None

    def __repr__(self) -> str:
        return f"<Grant of {', '.join(self.rights)}>"


class Holder(NamedTuple):
    """The holder of a token.

    Attributes:
        name: For the log and the audit log.
        rights: What they may do.
        rate: Most requests in a time; None: any number.
    """

    name: str
    rights: Rights
    rate: Rate | None

    def command_id(self, key: str) -> str:
        """Return the command id of a key that they have chosen: keys of others are other ids, so no one meets another's command by one."""
        return f"{quote(self.name, safe='')}:{key}"


class Tokens:
    """All tokens that a gateway knows. `tokens` makes it.

    Args:
        holders: Returns them as they are now, by the digest of their token.
    """

    def __init__(self, holders: Callable[[], Mapping[bytes, Holder]]) -> None:
        self._now = holders

    def holder(self, authorization: bytes | None) -> Holder | None:
        """Return whose token stands in a header `Authorization`; None if it is none that is known.

        A token is looked up by its digest, so the time that this takes tells nothing of those that are known.
        """
        if authorization is None or len(authorization) > _LONGEST or authorization[:7].lower() != _SCHEME:
            return None
        return self._now().get(digest_of(authorization[7:].strip(b" ")))

    def __repr__(self) -> str:
        return f"<Tokens of {', '.join(sorted(each.name for each in self._now().values()))}>"


def tokens(grants: Mapping[str, Grant]) -> Tokens:
    """Return who may use the gateway, by name: `tokens({"ci": Grant(CI_TOKEN, ("send:Deposit", "look"))})`.

    Raises:
        InvalidSettings: There is none, two are the same, or one is too short; a right or rate is none.
    """
    found = holders_of(grants)
    return Tokens(lambda: found)


def holders_of(grants: Mapping[str, Grant]) -> dict[bytes, Holder]:
    """Return the holders of tokens by the digest of each.

    Raises:
        InvalidSettings: As `tokens`.
    """
    holders: dict[str, Holder] = {}
    if not isinstance(grants, Mapping) or not grants:
        raise InvalidSettings('tokens: name at least one, as in {"ci": Grant(token, ("send:Deposit", "look"))}')
    for name, grant in grants.items():
        if not isinstance(name, str) or not name:
            raise InvalidSettings(f"a token has a name, not {name!r}")
        if not isinstance(grant, Grant):
            raise InvalidSettings(f"{name!r}: Grant(token, rights), not {type(grant).__name__}")
        hashed = grant.token if str(grant.token).startswith("sha256$") else hash_token(grant.token)
        checked_hash(name, hashed)
        if hashed in holders:
            raise InvalidSettings(f"{name!r} and {holders[hashed].name!r} have the same token")
        rate = checked_rate(name, grant.rate)
        holders[hashed] = Holder(name, Rights(name, grant.rights), None if rate is None else Rate(rate))
    return {_digest_in(hashed): holder for hashed, holder in holders.items()}


def _digest_in(hashed: str) -> bytes:
    return base64.urlsafe_b64decode(hashed.partition("$")[2] + "=")


_KEYS = {"token", "rights", "rate"}


def read_tokens(file: str | Path) -> Tokens:
    """Return the tokens of a file: a table for each, with `token`, a hash, `rights` and perhaps `rate`.

    The file is read again when it changes: a token that is taken out is let in for a second more at most.

    Raises:
        InvalidSettings: The file cannot be read, or is not of this form.
    """
    found = RereadFile(file, _read)
    return Tokens(lambda: found.value)


def _read(file: str | Path) -> dict[bytes, Holder]:
    return holders_of({name: _grant(str(file), name, table) for name, table in read_tables(file, "tokens").items()})


def _grant(file: str, name: str, table: Any) -> Grant:
    if not isinstance(table, dict) or not _KEYS >= table.keys() >= {"token", "rights"} or not isinstance(table["rights"], list):
        raise InvalidSettings(f'{file}: [{name}] has token = "sha256$…", rights = ["send:Deposit", "look"] and perhaps rate = 50')
    return Grant(checked_hash(name, table["token"]), tuple(table["rights"]), table.get("rate"))
