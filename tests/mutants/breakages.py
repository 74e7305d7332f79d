"""Deliberate breakages of the bus, one at a time: the simulator, or the named test, must turn red on every one.

Each is an exact replacement of text; one whose text is no longer there fails loudly, so that the list follows the code.
"""

from __future__ import annotations

from tests.mutants.deduplication import DEDUPLICATION
from tests.mutants.durable import DURABLE
from tests.mutants.fencing import FENCING
from tests.mutants.inbox import INBOX
from tests.mutants.limits import LIMITS
from tests.mutants.operating import OPERATING
from tests.mutants.ordering import ORDERING
from tests.mutants.outbox import OUTBOX
from tests.mutants.publication import PUBLICATION
from tests.mutants.recovery import RECOVERY
from tests.mutants.runs import RUNS
from tests.mutants.settlement import SETTLEMENT
from tests.mutants.several import SEVERAL
from tests.mutants.short_way import SHORT_WAY
from tests.mutants.states import STATES

MUTANTS = (
    *ORDERING,
    *FENCING,
    *SETTLEMENT,
    *DEDUPLICATION,
    *RECOVERY,
    *DURABLE,
    *INBOX,
    *LIMITS,
    *OPERATING,
    *OUTBOX,
    *PUBLICATION,
    *SEVERAL,
    *SHORT_WAY,
    *RUNS,
    *STATES,
)
