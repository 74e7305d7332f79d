"""`RowFlows`: what the commands of rows wait in: a priority, and the tenant that a field names. The same as `dispatch` makes of equal values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any

import pyarrow as pa

from command_bus.errors import InvalidCommand
from command_bus.messages.policies import Priority
from command_bus.spark.writing.columns import column_values
from command_bus.spark.writing.field_checks import FieldPlan
from command_bus.transport.flows import flow_of, tenant_of


class RowFlows:
    """The flows of one command's rows.

    Args:
        priority: Of all these rows.
        tenant: The field that names the tenant, or None.
    """

    def __init__(self, priority: Priority, tenant: FieldPlan | None) -> None:
        self._priority: Priority = priority
        self._tenant = tenant

    def of(self, tenant: str) -> str:
        """Return the flow of a tenant; that of none is empty."""
        return flow_of(self._priority, tenant)

    def of_columns(self, columns: Mapping[str, pa.Array]) -> Iterable[str]:
        """Return the flow of each row; all have passed `mask`. Where all have the same there is no end."""
        field = self._tenant
        if field is None:
            return repeat(self.of(""))
        column = columns.get(field.name)
        if column is None:
            return repeat(self.of(tenant_of(field.default)))
        keys = column.dictionary_encode()
        flows: dict[int | None, str] = {
            index: self.of(tenant_of(value)) for index, value in enumerate(keys.dictionary.to_pylist())
        }
        flows[None] = self.of("")
        return [flows[index] for index in keys.indices.to_pylist()]

    def mask(self, columns: Mapping[str, pa.Array], rows: int) -> pa.Array | None:
        """Return which of so many rows name a tenant or none; None if all do."""
        field = self._tenant
        if field is None:
            return None
        column = columns.get(field.name)
        if column is None:
            return None if _is_tenant(field.default) else pa.repeat(pa.scalar(False), rows)
        keys = column.dictionary_encode()
        values, faults = column_values(keys.dictionary)
        fit = [index not in faults and _is_tenant(value) for index, value in enumerate(values)]
        return None if all(fit) else pa.array(fit, pa.bool_()).take(keys.indices).fill_null(True)


def _is_tenant(value: Any) -> bool:
    try:
        tenant_of(value)
    except InvalidCommand:
        return False
    return True
