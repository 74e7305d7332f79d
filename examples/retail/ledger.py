"""Storage of the accounts: in the same Redis server, under the example's own keys, one string per customer."""

from __future__ import annotations

from redis.asyncio import Redis

from examples.retail.model import Account, from_text, to_text

__all__ = ["Ledger"]


class Ledger:
    """The accounts of one run, and whether the payment provider answers."""

    def __init__(self, client: Redis, namespace: str) -> None:
        self._client = client
        self._prefix = f"{namespace}.customer:"  # no key of the bus begins like this
        self._provider = f"{namespace}.provider"

    async def load(self, customer: str) -> Account:
        """Return the account; a new one if the customer is not known."""
        text = await self._client.get(self._prefix + customer)
        return Account() if text is None else from_text(text)

    async def store(self, customer: str, account: Account) -> None:
        """Overwrite the account, whatever it is by now."""
        await self._client.set(self._prefix + customer, to_text(account))

    async def load_all(self, page: int = 2000) -> dict[str, Account]:
        """Return all accounts, by customer."""
        names = [name async for name in self._client.scan_iter(match=f"{self._prefix}*", count=page)]
        found: dict[str, Account] = {}
        for start in range(0, len(names), page):
            part = names[start : start + page]
            for name, text in zip(part, await self._client.mget(part), strict=True):
                if text is not None:
                    found[name.decode().removeprefix(self._prefix)] = from_text(text)
        return found

    async def provider_answers(self) -> bool:
        """Return whether large payments can be authorised."""
        return bool(await self._client.exists(self._provider))

    async def repair_provider(self) -> None:
        """Let large payments be authorised from now on."""
        await self._client.set(self._provider, "up")
