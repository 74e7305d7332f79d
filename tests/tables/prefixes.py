"""Requests below a prefix: rows of `test_prefixes.py`."""

from __future__ import annotations

__all__ = ["REFUSED", "REQUESTS"]

PROXY, OTHER = "10.0.0.7", "10.9.9.9"

REQUESTS: dict[str, tuple[str, str | None, str, str, tuple[str, str]]] = {
    "no prefix": ("", None, PROXY, "/entities", ("", "/entities")),
    "passed on as it is": ("/ops", None, OTHER, "/ops/entities", ("/ops", "/ops/entities")),
    "taken off by the proxy": ("/ops", None, OTHER, "/entities", ("/ops", "/ops/entities")),
    "a slash at the end": ("/ops/", None, OTHER, "/entities", ("/ops", "/ops/entities")),
    "of several parts": ("/a/b.c", None, OTHER, "/entities", ("/a/b.c", "/a/b.c/entities")),
    "the first page, as it is": ("/ops", None, OTHER, "/ops", ("/ops", "/ops/")),
    "the first page, taken off": ("/ops", None, OTHER, "/", ("/ops", "/ops/")),
    "another path that begins alike": ("/ops", None, OTHER, "/opsx", ("/ops", "/ops/opsx")),
    "an id with an escaped slash": ("/ops", None, OTHER, "/entities/a%2Fb", ("/ops", "/ops/entities/a/b")),
    "a proxy names it": ("", "/ops", PROXY, "/entities", ("/ops", "/ops/entities")),
    "a proxy names it with a slash": ("", "/ops/", PROXY, "/entities", ("/ops", "/ops/entities")),
    "a proxy names it and passes it on": ("", "/ops", PROXY, "/ops/entities", ("/ops", "/ops/entities")),
    "a proxy counts more": ("/other", "/ops", PROXY, "/entities", ("/ops", "/ops/entities")),
    "others count nothing": ("", "/ops", OTHER, "/entities", ("", "/entities")),
    "others beside an option": ("/other", "/ops", OTHER, "/entities", ("/other", "/other/entities")),
    "another site": ("", "//evil.example", PROXY, "/entities", ("", "/entities")),
    "an address": ("", "https://evil.example", PROXY, "/entities", ("", "/entities")),
    "markup": ("", '/"><script>', PROXY, "/entities", ("", "/entities")),
    "a way up": ("", "/a/../b", PROXY, "/entities", ("", "/entities")),
    "too long": ("", "/" + 300 * "a", PROXY, "/entities", ("", "/entities")),
    "empty": ("", "", PROXY, "/entities", ("", "/entities")),
    "two of them": ("", "/ops, /other", PROXY, "/entities", ("", "/entities")),
}
"""By what is tried: the option, the header, who asks, the path, and the root and path that the application sees."""

REFUSED = ["ops", "//ops", "/o ps", "/a/../b", "https://x", "/ä", "/a?b", "/" + 300 * "a"]
