"""The breakages of single parts of the bus."""

from __future__ import annotations

from tests.mutants.compression import COMPRESSION
from tests.mutants.durable import DURABLE
from tests.mutants.durable_ends import DURABLE_ENDS
from tests.mutants.equality import EQUALITY
from tests.mutants.events import EVENTS
from tests.mutants.follow_ups import FOLLOW_UPS
from tests.mutants.following import FOLLOWING
from tests.mutants.history import HISTORY
from tests.mutants.leases import LEASES
from tests.mutants.limits import LIMITS
from tests.mutants.line import LINE
from tests.mutants.lone import LONE
from tests.mutants.moments import MOMENTS
from tests.mutants.outside import OUTSIDE
from tests.mutants.policies import POLICIES
from tests.mutants.reserved import RESERVED
from tests.mutants.schedules import SCHEDULES
from tests.mutants.slots import SLOTS
from tests.mutants.small import SMALL
from tests.mutants.spark import SPARK
from tests.mutants.stored import STORED
from tests.mutants.tasks import TASKS
from tests.mutants.unique import UNIQUE
from tests.mutants.values import VALUES
from tests.mutants.versions import VERSIONS

__all__ = ["PARTS"]

PARTS = (
    *COMPRESSION,
    *DURABLE,
    *DURABLE_ENDS,
    *TASKS,
    *EVENTS,
    *FOLLOWING,
    *FOLLOW_UPS,
    *HISTORY,
    *LEASES,
    *LIMITS,
    *LINE,
    *LONE,
    *MOMENTS,
    *OUTSIDE,
    *POLICIES,
    *RESERVED,
    *SCHEDULES,
    *SLOTS,
    *SMALL,
    *SPARK,
    *STORED,
    *UNIQUE,
    *VALUES,
    *VERSIONS,
    *EQUALITY,
)
