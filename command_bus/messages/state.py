"""`EntityState`: what an entity is, as a parameter of its handlers. It is written by the step that settles the command which changed it.

    class Account(EntityState, entity="account"):
        balance: int = 0

    @handles(Deposit)
    async def deposit(command: Deposit, account: Account) -> int:
        account.balance += command.amount
        return account.balance

A command is settled with its change of the state, or neither is: state and settled commands always agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import Unpack

from command_bus.clock import duration_ms
from command_bus.errors import InvalidCommand, RegistrationError
from command_bus.messages.message import MOST_VERSION, check_entity_type
from command_bus.messages.unreadable import unreadable

S = TypeVar("S", bound="EntityState")
_CLASS_ARGUMENTS = ("entity", "version", "keep")


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The facts about a class of states.

    Attributes:
        name: What the class is called.
        entity: Type of its entities.
        version: Number of the form that its fields have: see `upcasts`.
        keep_ms: Milliseconds after the last change for which a state is kept; None: for ever.
    """

    name: str
    entity: str
    version: int = 1
    keep_ms: int | None = None


class EntityState(BaseModel):
    """The base of states: `class Account(EntityState, entity="account")`.

    Class arguments:
        entity: Type of its entities; one class for each type.
        version: Raise it with each change of the fields, and write an `upcasts` function for what was stored before; 1 at first.
        keep: For how long a state is kept after its last change, as `"400 days"` or a number of seconds; by default for ever.

    Every field has a default: an entity without a stored state has these. Fields are checked when they are assigned to. Models are strict,
    forbid unknown fields, and refuse NaN.
    """

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        validate_assignment=True,
        validate_default=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    __state_spec__: ClassVar[StateSpec | None] = None

    def __init_subclass__(
        cls,
        *,
        entity: str | None = None,
        version: int | None = None,
        keep: str | float | None = None,
        **config: Unpack[ConfigDict],
    ) -> None:
        """Name the class arguments for type checkers; pydantic passes the same ones to the hook below, once fields are known."""
        super().__init_subclass__()

    @classmethod
    def __pydantic_init_subclass__(cls, *, entity: str | None = None, **given: Any) -> None:
        super().__pydantic_init_subclass__()
        if unknown := sorted(set(given).difference(_CLASS_ARGUMENTS)):
            raise RegistrationError(
                f"{cls.__qualname__}: unknown class argument {unknown[0]!r}; there are {', '.join(_CLASS_ARGUMENTS)}"
            )
        if entity is None:
            return  # a base of states, which are declared by its subclasses
        for fault in _faults(cls, entity, **given):
            raise RegistrationError(f"{cls.__qualname__}{fault}")
        keep = given.get("keep")
        keep_ms = None if keep is None else duration_ms(keep)
        cls.__state_spec__ = StateSpec(cls.__qualname__, entity, given.get("version") or 1, keep_ms)

    @classmethod
    def spec(cls) -> StateSpec:
        """Return what the bus knows of this class.

        Raises:
            RegistrationError: The class names no entity type.
        """
        if cls.__state_spec__ is None:
            raise RegistrationError(
                f'{cls.__qualname__} is the state of no entity: write class {cls.__qualname__}(EntityState, entity="…")'
            )
        return cls.__state_spec__


def _faults(cls: type[EntityState], entity: str, *, version: int | None = None, keep: Any = None) -> Iterator[str]:
    """Yield what is wrong with a class of states."""
    try:
        check_entity_type(entity)
    except InvalidCommand as error:
        yield f": {error}"
    if version is not None and (type(version) is not int or not 1 <= version <= MOST_VERSION):
        yield f": version is a whole number from 1 to {MOST_VERSION:,}, not {version!r}"
    if keep is not None:
        try:
            duration_ms(keep)
        except ValueError as error:
            yield f": keep {error}"
    for name, info in cls.model_fields.items():
        if info.is_required():
            yield f".{name} has no default: an entity without a stored state has the defaults of all fields"
        if hasattr(EntityState, name):
            yield f".{name}: every state has an attribute of that name: call the field otherwise"
    if cls.__pydantic_complete__ and (fault := unreadable(cls.__pydantic_core_schema__)):
        yield f": {fault}"


def check_defaults(kind: type[EntityState]) -> None:
    """Check that the defaults of a class of states are what its fields allow; what a function makes is not looked at.

    Raises:
        RegistrationError: One is not.
    """
    made = {name: info.default for name, info in kind.model_fields.items() if info.default_factory is None}
    try:
        kind.model_validate(made, by_name=True)
    except ValidationError as error:
        wrong = [str(each["loc"][0]) for each in error.errors(include_input=False) if each["loc"] and each["loc"][0] in made]
        if wrong:
            raise RegistrationError(f"{kind.__qualname__}.{wrong[0]}: its default is not of its type") from None


def is_state(annotation: Any) -> bool:
    """Return whether an annotation is a class of states."""
    return isinstance(annotation, type) and issubclass(annotation, EntityState)


def states_of(entity: str | None) -> Iterator[type[EntityState]]:
    """Yield the classes of states of an entity type that this process knows, the last ones last."""
    found = [EntityState]
    for each in found:
        found += each.__subclasses__()
        if each.__state_spec__ is not None and each.__state_spec__.entity == entity:
            yield each


@dataclass(slots=True, eq=False)
class HeldState:
    """The state of an entity whose command runs.

    Attributes:
        value: What the handler gets, and may change.
        before: What is stored, packed; of a new one its defaults.
        is_stored: Whether something is stored.
        is_deleted: Whether the handler wants it to be deleted.
        is_void: Whether the handler has raised: what it changed counts no more, whatever middleware makes of that.
    """

    value: EntityState
    before: bytes
    is_stored: bool
    is_deleted: bool = False
    is_void: bool = False
