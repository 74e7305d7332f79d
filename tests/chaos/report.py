from __future__ import annotations
import json
from collections import Counter
from pathlib import Path
class Report:
    def __init__(self, plan, history, violations, missing):
        self.plan, self.history, self.violations, self.missing = plan, history, violations, missing
    def write(self, folder): pass
    def text(self):
        h = self.history
        return "\n".join([str(Counter(f.kind for f in h.faults)), str(Counter(h.final.outcomes.values())), str(h.final.counters), str(len(h.started)), str(self.missing),
          str(Counter(a.answer for a in h.asked)), str(Counter(c.outcome for c in h.called)), f"violations {len(self.violations)}", *map(str, self.violations[:25])])
