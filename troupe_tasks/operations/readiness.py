"""Whether this machine can run agents now: the doctor's findings, and the programs troupe brings for itself."""

from __future__ import annotations

from collections.abc import Callable

from troupe_tasks.doctor import capsule, hardware, release
from troupe_tasks.doctor.finding import Finding
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.doctor.run import CHECKS, run_doctor
from troupe_tasks.doctor.show import stops
from troupe_tasks.errors import NotReady
from troupe_tasks.host import apt
from troupe_tasks.operations.house import House

# A person who asks the doctor waits at most 5 s. A create on a machine that is merely busy must not be refused for
# a check that was slow: here silence stops.
_PATIENCE = 5


def examine(house: House) -> tuple[Finding, ...]:
    """Run every check of the doctor."""
    return run_doctor(Machine.here(house.paths), driver=house.at_a_glance)


def bring_programs(house: House, told: Callable[[str], None]) -> None:
    """Bring what no package of this machine has: a gVisor that works. Without it the weaker isolation serves.

    Docker's sandboxes need none.
    """
    if house.chosen == "sbx":
        return
    try:
        apt.ensure_runsc(house.paths, told)
    except NotReady as error:
        told(f"going on without gVisor: {error}")


def refuse_unready(house: House) -> None:
    """Raise NotReady naming everything that stands in the way."""
    # The capsule only notes a KVM that does not work, and where it hangs the probe takes its whole deadline; so it is
    # with sbx and gVisor. A newer release stops nothing either, and is nothing to ask the network about now.
    needless = (release.current, hardware.virtualization if house.chosen == "capsule" else capsule.gvisor)
    checks = tuple(entry for entry in CHECKS if entry.check not in needless)
    machine = Machine.here(house.paths, patience=_PATIENCE)
    blocking = stops(run_doctor(machine, driver=house.chosen, checks=checks, patience=_PATIENCE))
    if blocking:
        what = "; ".join(f"{finding.requirement}: {finding.detail}" for finding in blocking)
        todo = " ".join(finding.todo for finding in blocking if finding.todo)
        raise NotReady(f"this machine is not ready: {what}", hint=todo or NotReady.hint)
