"""The check of `doctor --export`: what a folder lacks, and what waits for its exporter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from command_bus.clock import format_duration
from command_bus.doctor.diagnosis import CommandLine, Finding

if TYPE_CHECKING:
    from command_bus.bus import CommandBus

_LATE = 3600.0


async def examine_export(bus: CommandBus, folder: Path, line: CommandLine) -> list[Finding]:
    """Look at an export, without a lock: an exporter may run.

    Raises:
        InvalidSettings: The folder has no export, or one of another namespace.
        TransportUnavailable: The server cannot be reached.
    """
    from command_bus.export.exporter import Standing, standing

    found: list[Standing] = await standing(bus, folder)
    findings: list[Finding] = []
    for gap in sorted((folder / "gaps").glob("[!.]*.json")):
        advice = "keep histories and events for longer, or export more often; delete the file once this is known"
        findings.append(Finding("export", "warning", f"entries were deleted before they were read: {gap}", advice))
    again = line("export", *dict.fromkeys(each.view for each in found), "--to", str(folder), "--follow")
    for each in found:
        if each.lost:
            text = f"{each.view} of shard {each.shard}: {each.lost:,} entries were deleted before they were read"
            findings.append(Finding("export", "bad", text, again))
        elif each.waits > _LATE:
            text = f"{each.view} of shard {each.shard}: the oldest entry that no file has waits for {format_duration(each.waits)}"
            findings.append(Finding("export", "warning", text, again))
    return findings or [Finding("export", "ok", f"{len(found)} streams, none with an entry that waits for an hour")]
