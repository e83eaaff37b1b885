"""Compare what an agent needs with what the machine has left: arithmetic on values, no input or output.

| resource | counted | available |
| --- | --- | --- |
| memory | each running sandbox's memory + its driver's own | the machine's - the daemon's - 2 GiB |
| CPUs | each running sandbox's | 1.5 x the CPU threads this process may use |
| disk | what every sandbox's disks may still grow | free space - 10 % of it |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from troupe_tasks.errors import OverBudget
from troupe_tasks.sizes import Room, show_mib

RESERVE_MIB: Final = 2048
# A full virtual machine's memory peaks about 1 GiB above its guest's; its exec process holds about 100 MiB.
_VM_OVERHEAD_MIB: Final = 1280
OVERHEAD_MIB: Final = {"capsule": 128, "vm": _VM_OVERHEAD_MIB, "sbx": _VM_OVERHEAD_MIB}


class Resource(StrEnum):
    """What a machine runs out of."""

    MEMORY = "memory"
    CPUS = "cpus"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Host:
    """What the machine has (None: can't be read); daemon_mib is what the sandbox daemon holds."""

    cpu_threads: int | None
    memory_mib: int | None
    disk_free_mib: int | None
    daemon_mib: int = 0


@dataclass(frozen=True, slots=True)
class Need:
    """What one agent wants.

    disk_growth_mib is all of a new agent's disks, or what an old one's may still grow.
    """

    driver: str
    cpus: int
    memory_mib: int
    disk_growth_mib: int


@dataclass(frozen=True, slots=True)
class Running:
    """One sandbox that the driver lists, troupe's own or not (id None); None for a size it does not report.

    up: it runs now, or a gateway unit that is up will boot it again within seconds.
    """

    id: str | None
    name: str
    driver: str
    up: bool
    cpus: int | None
    memory_mib: int | None
    disk_growth_mib: int | None


@dataclass(frozen=True, slots=True)
class Line:
    """One resource: needed and available as counted, and how the figure came about. MiB, or CPUs."""

    resource: Resource
    needed: int
    available: int
    detail: str

    @property
    def over(self) -> int:
        """Return by how much the need exceeds what is available; 0 when it fits."""
        return max(0, self.needed - self.available)

    def show(self) -> str:
        """Return the line for a person."""
        end = f"over by {_amount(self.resource, self.over)}" if self.over else "fits"
        need, left = _amount(self.resource, self.needed), _amount(self.resource, self.available)
        return f"{self.resource}: needs {need}, {left} available ({self.detail}): {end}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison says. Refusals can't be forced; being over can, by --force."""

    lines: tuple[Line, ...]
    refusals: tuple[str, ...]
    notes: tuple[str, ...]
    unsized: tuple[str, ...] = ()  # the sandboxes that a refusal names, last

    @property
    def over(self) -> tuple[Line, ...]:
        """Return the resources that the agent needs more of than there is."""
        return tuple(line for line in self.lines if line.over)

    @property
    def fits(self) -> bool:
        """Return whether nothing stands against the agent."""
        return not self.refusals and not self.over

    def raise_refusals(self) -> None:
        """Raise OverBudget (with a hint that --force is no help) when the agent is refused outright."""
        if self.refusals:
            todo = ["choose smaller sizes"] if len(self.refusals) > len(self.unsized) else []
            todo += [f"stop {name}" for name in self.unsized]
            raise OverBudget(
                "; ".join(self.refusals), hint=f"--force does not pass this: {' and '.join(todo)}."
            )

    def raise_over(self) -> None:
        """Raise OverBudget naming each resource that is short."""
        if self.over:
            raise OverBudget("; ".join(line.show() for line in self.over))


@dataclass(frozen=True, slots=True)
class _Load:
    """What the other sandboxes take."""

    up: int
    cpus: int
    memory_mib: int
    disk_growth_mib: int
    unsized: tuple[str, ...]
    ungrown: int


def check(host: Host, need: Need, *, others: Iterable[Running]) -> Verdict:
    """Return the verdict on an agent beside the others (leave its own sandbox out of them)."""
    load = _load(others)
    lines = [
        line for line in (_memory(host, need, load), _cpus(host, need, load), _disk(host, need, load)) if line
    ]
    return Verdict(
        tuple(lines), tuple(_refusals(host, need, load)), tuple(_notes(host, load)), tuple(load.unsized)
    )


def room(host: Host, *, driver: str, others: Iterable[Running]) -> Room:
    """Return the most that one agent of this driver can be given beside the others: what `max` means."""
    load = _load(others)
    memory, cpus, disk = _memory_left(host, load), _cpus_left(host, load), _disk_left(host, load)
    return Room(
        # CPUs are overcommitted among agents, but no agent can use more than the machine has.
        cpus=None if cpus is None or host.cpu_threads is None else max(0, min(cpus, host.cpu_threads)),
        memory_mib=None if memory is None else max(0, memory - OVERHEAD_MIB[driver]),
        disk_mib=None if disk is None else max(0, disk),
    )


def _load(others: Iterable[Running]) -> _Load:
    up = cpus = memory = disk = ungrown = 0
    unsized: list[str] = []
    for other in others:
        if other.disk_growth_mib is None:
            ungrown += 1
        else:
            disk += other.disk_growth_mib
        if not other.up:
            continue
        up += 1
        if other.cpus is None or other.memory_mib is None:
            unsized.append(other.name)
            continue
        cpus += other.cpus
        memory += other.memory_mib + OVERHEAD_MIB[other.driver]
    return _Load(up, cpus, memory, disk, tuple(sorted(unsized)), ungrown)


def _memory_left(host: Host, load: _Load) -> int | None:
    if host.memory_mib is None:
        return None
    return host.memory_mib - host.daemon_mib - RESERVE_MIB - load.memory_mib


def _cpus_left(host: Host, load: _Load) -> int | None:
    return None if host.cpu_threads is None else host.cpu_threads * 3 // 2 - load.cpus


def _disk_left(host: Host, load: _Load) -> int | None:
    if host.disk_free_mib is None:
        return None
    return host.disk_free_mib - -(-host.disk_free_mib // 10) - load.disk_growth_mib


def _memory(host: Host, need: Need, load: _Load) -> Line | None:
    left = _memory_left(host, load)
    if left is None or host.memory_mib is None:
        return None
    daemon = f" - {show_mib(host.daemon_mib)} of the sandbox daemon" if host.daemon_mib else ""
    overhead = OVERHEAD_MIB[need.driver]
    detail = (
        f"{show_mib(host.memory_mib)} in all{daemon} - {show_mib(RESERVE_MIB)} reserve"
        f" - {show_mib(load.memory_mib)} of {_others(load.up)}; the need is"
        f" {show_mib(need.memory_mib)} + {show_mib(overhead)} around it"
    )
    return Line(Resource.MEMORY, need.memory_mib + overhead, left, detail)


def _cpus(host: Host, need: Need, load: _Load) -> Line | None:
    left = _cpus_left(host, load)
    if left is None:
        return None
    detail = f"1.5 x {host.cpu_threads} threads - {load.cpus} of {_others(load.up)}"
    return Line(Resource.CPUS, need.cpus, left, detail)


def _disk(host: Host, need: Need, load: _Load) -> Line | None:
    left = _disk_left(host, load)
    if left is None or host.disk_free_mib is None:
        return None
    detail = (
        f"{show_mib(host.disk_free_mib)} free - {show_mib(-(-host.disk_free_mib // 10))} reserve"
        f" - {show_mib(load.disk_growth_mib)} that the other sandboxes' disks may still grow"
    )
    return Line(Resource.DISK, need.disk_growth_mib, left, detail)


def _refusals(host: Host, need: Need, load: _Load) -> Iterable[str]:
    if host.memory_mib is not None and need.memory_mib > host.memory_mib:
        wanted, there = show_mib(need.memory_mib), show_mib(host.memory_mib)
        yield f"{wanted} of memory is more than this machine has ({there})"
    if host.cpu_threads is not None and need.cpus > host.cpu_threads:
        yield f"{need.cpus} CPUs are more than this machine has ({host.cpu_threads} threads)"
    for name in load.unsized:
        yield f"the running sandbox {name} does not report its size, so what is left can't be known"


def _notes(host: Host, load: _Load) -> Iterable[str]:
    figures = {
        "memory": host.memory_mib, "CPU threads": host.cpu_threads, "free disk space": host.disk_free_mib,
    }  # fmt: skip
    for figure, value in figures.items():
        if value is None:
            yield f"this machine's {figure} can't be read and was not checked"
    if load.ungrown:
        yield f"{_others(load.ungrown)} did not report its disk size, which was not counted"


def _amount(resource: Resource, figure: int) -> str:
    return str(figure) if resource is Resource.CPUS else show_mib(figure)


def _others(count: int) -> str:
    return "1 other sandbox" if count == 1 else f"{count} other sandboxes"
