"""`Tokens`: who may use the gateway, and for what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from command_bus.errors import InvalidSettings
from command_bus.gateway.rates import Rate, checked_rate
from command_bus.gateway.rights import Rights
from command_bus.gateway.token_hashes import checked_hash, digest_of, hash_token

_SCHEME = b"bearer "
_LONGEST = 600


class Grant(NamedTuple):
    """A token and what it allows.

    Attributes:
        token: The token, or its hash as `command-bus token` prints it.
        rights: As `Rights` takes them: `("send:Deposit", "look")`, or `("*",)` for all.
        rate: Requests a second in each process; None: as many as come. Each command of a batch counts.
    """

    token: str
    rights: tuple[str, ...]
    rate: float | None = None

    def __repr__(self) -> str:
        return f"<Grant of {', '.join(self.rights)}>"


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a token.

    Attributes:
        name: For the log and the audit log.
        rights: What they may do.
        rate: How often; None: as often as they like.
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
    import base64

    return base64.urlsafe_b64decode(hashed.partition("$")[2] + "=")
