"""Templates: Jinja2, which escapes whatever it is given."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2

from command_bus.dashboard.words import ago, count, span, stamp, tone, when


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("command_bus.dashboard"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(ago=ago, count=count, span=span, stamp=stamp, tone=tone, when=when)
    return made


def render(template: str, **values: Any) -> str:
    """Return a page as text."""
    return _environment().get_template(template).render(**values)
