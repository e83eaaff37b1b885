"""`troupe doctor`."""

from __future__ import annotations

from invoke import Context

from troupe_tasks.commands.frame import command


@command(example="troupe doctor --json", flags={})
def doctor(context: Context, json: bool = False, debug: bool = False) -> None:
    """Check this machine: one line a requirement, each ok, a note, an action for you, or a failure."""
    import sys

    from troupe_tasks.commands.output import show_json
    from troupe_tasks.doctor.show import lines, stops
    from troupe_tasks.errors import NotReady
    from troupe_tasks.operations.house import House
    from troupe_tasks.operations.readiness import examine
    from troupe_tasks.paths import Paths

    findings = examine(House(Paths.from_env()))
    if json:
        show_json([finding.model_dump(mode="json") for finding in findings])
    else:
        print("\n".join(lines(findings)))
    if stops(findings):
        sys.exit(NotReady.status)
