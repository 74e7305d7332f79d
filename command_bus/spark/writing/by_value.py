"""Objects as text, pickled by value, so that executors need not import the module of a notebook."""

from __future__ import annotations

import base64
import pickle
from io import BytesIO
from operator import getitem
from typing import Any

from command_bus.errors import InvalidSettings
from command_bus.messages.message import Message
from command_bus.spark.writing.named_imports import PICKLE, are_restricted

_PICKLED = "pickle:"


def pickled(thing: Any) -> str:
    """Return an object as text, pickled by value, so that executors need not import the module of a notebook."""
    from pyspark import cloudpickle

    base: Any = cloudpickle.CloudPickler  # it has no types

    class Pickler(base):  # type: ignore[misc]
        """Pickles `Command[int]` as a subscription, instead of by the module that made it first.

        It also leaves out what pydantic keeps of the function in which a model is defined: all its variables, such as a Spark session.
        """

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and issubclass(obj, Message):
                generic: Any = obj.__pydantic_generic_metadata__
                if generic["origin"] is not None:
                    return getitem, (generic["origin"], generic["args"])
            reduced: Any = super().reducer_override(obj)
            if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:  # else it has no state
                reduced[2][0].pop("__pydantic_parent_namespace__", None)
            return reduced

    buffer = BytesIO()
    Pickler(buffer).dump(thing)
    return _PICKLED + base64.b64encode(buffer.getvalue()).decode()


def is_pickled(text: str) -> bool:
    """Return whether a text is a pickled object."""
    return text.startswith(_PICKLED)


def unpickled(text: str) -> Any:
    """Return a pickled object. It comes from the user's own driver, so it is trusted like the user's code.

    Raises:
        InvalidSettings: COMMAND_BUS_SPARK_PICKLE=no forbids it, for places where options may come from other people.
    """
    if are_restricted():
        raise InvalidSettings(
            f"{PICKLE} forbids classes and functions by value here: give 'package.module:name', which executors can import"
        )
    return pickle.loads(base64.b64decode(text.removeprefix(_PICKLED)))  # noqa: S301 - the driver's own option
