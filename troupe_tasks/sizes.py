"""Read the sizes a person asks for, and settle each `max` against what the machine can give.

Sizes are whole CPUs and whole MiB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from troupe_tasks.errors import NotReady, OverBudget, UsageError
from troupe_tasks.text import line

MIB_PER_GIB: Final = 1024
MIN_CPUS: Final = 1
MIN_MEMORY_MIB: Final = 1 * MIB_PER_GIB
MIN_DISK_MIB: Final = 10 * MIB_PER_GIB


class Max(Enum):
    """The word `max`: all that this machine can give."""

    MAX = "max"


Amount = int | Max

# Digits are counted, so that no number is longer than any machine is large (and int() stays cheap).
_CPUS = re.compile(r"[0-9]{1,5}")
_SIZE = re.compile(r"([0-9]{1,7})(?:\.([0-9]))?(GiB)?|([0-9]{1,10})MiB", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for; ratio is the kit's, of its disk to Docker's, by which two `max` share what there is."""

    cpus: Amount
    memory_mib: Amount
    storage_mib: Amount
    docker_mib: Amount = 0
    ratio: tuple[int, int] = (1, 1)


@dataclass(frozen=True, slots=True)
class Settled:
    """The sizes of one agent, each a number."""

    cpus: int
    memory_mib: int
    storage_mib: int
    docker_mib: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """The most one agent can be given now, its disks together; None where the machine's figure can't be read."""

    cpus: int | None
    memory_mib: int | None
    disk_mib: int | None


def parse_cpus(text: str, *, flag: str = "--cpu") -> Amount:
    """Return a whole number of CPUs, or MAX. Raises UsageError."""
    word = text.strip()
    if word.lower() == "max":
        return Max.MAX
    if not _CPUS.fullmatch(word) or int(word) == 0:
        raise _unusable(flag, text, "a whole number of CPUs from 1 up (2), or max")
    return int(word)


def parse_mib(text: str, *, flag: str, takes_max: bool = True) -> Amount:
    """Return a size in MiB, rounded up to a whole one, or MAX where that is taken. Raises UsageError."""
    word = text.strip()
    if takes_max and word.lower() == "max":
        return Max.MAX
    match = _SIZE.fullmatch(word)
    mib = 0
    if match:
        whole, tenth, _unit, plain_mib = match.groups()
        # Up, so that nobody gets less than was asked for: a tenth of a GiB is no whole number of MiB.
        mib = int(plain_mib) if plain_mib else -(-(int(whole) * 10 + int(tenth or 0)) * MIB_PER_GIB // 10)
    if mib == 0:
        numbers = "GiB with at most one decimal (8, 1.5, 8GiB), whole MiB (512MiB)"
        raise _unusable(flag, text, f"{numbers}, or max" if takes_max else numbers)
    return mib


def typed(*, cpu: str, memory: str, storage: str, docker: str) -> dict[str, Amount]:
    """Return the sizes that were given by flag, by their names in Wanted. Raises UsageError."""
    return {
        **({"cpus": parse_cpus(cpu)} if cpu else {}),
        **({"memory_mib": parse_mib(memory, flag="--memory")} if memory else {}),
        **({"storage_mib": parse_mib(storage, flag="--storage")} if storage else {}),
        **({"docker_mib": parse_mib(docker, flag="--docker")} if docker else {}),
    }


def show_mib(mib: int) -> str:
    """Return a size as a person checks it: exact GiB where one decimal is exact, else MiB."""
    if abs(mib) >= MIB_PER_GIB and mib * 10 % MIB_PER_GIB == 0:
        whole, tenth = divmod(abs(mib) * 10 // MIB_PER_GIB, 10)
        return f"{'-' if mib < 0 else ''}{whole}{f'.{tenth}' if tenth else ''} GiB"
    return f"{mib} MiB"


def show(*, cpus: int, memory_mib: int, storage_mib: int, docker_mib: int = 0) -> str:
    """Return an agent's sizes as a person reads them."""
    docker = f", {show_mib(docker_mib)} disk for Docker" if docker_mib else ""
    return f"{cpus} CPUs, {show_mib(memory_mib)} memory, {show_mib(storage_mib)} disk{docker}"


def settle(wanted: Wanted, *, room: Room) -> Settled:
    """Return wanted with each `max` settled.

    Raises OverBudget where max would leave too little, NotReady where the machine's figure can't be read.
    """
    storage_most, docker_most = _shares(wanted, room.disk_mib)
    return Settled(
        cpus=_settled(wanted.cpus, room.cpus, "--cpu", MIN_CPUS),
        memory_mib=_settled(wanted.memory_mib, room.memory_mib, "--memory", MIN_MEMORY_MIB),
        storage_mib=_settled(wanted.storage_mib, storage_most, "--storage", MIN_DISK_MIB),
        docker_mib=_settled(wanted.docker_mib, docker_most, "--docker", MIN_DISK_MIB),
    )


def _shares(wanted: Wanted, most: int | None) -> tuple[int | None, int | None]:
    """Return the most that each of the two disks can have: in their ratio, or what the other's number leaves."""
    if most is None:
        return None, None
    if isinstance(wanted.storage_mib, Max) and isinstance(wanted.docker_mib, Max):
        docker = most * wanted.ratio[1] // sum(wanted.ratio)
        return most - docker, docker
    return _left(most, wanted.docker_mib), _left(most, wanted.storage_mib)


def _left(most: int, other: Amount) -> int:
    return most if isinstance(other, Max) else max(0, most - other)


def _settled(amount: Amount, most: int | None, flag: str, least: int) -> int:
    if not isinstance(amount, Max):
        return amount
    if most is None:
        raise NotReady(
            f"{flag} max can't be worked out: this machine's own figure can't be read",
            hint=f"Give {flag} a number.",
        )
    if most < least:
        have, need = (most, least) if flag == "--cpu" else (show_mib(most), show_mib(least))
        raise OverBudget(
            f"{flag} max would be {have}, and the least is {need}",
            cause="the reserves and the other sandboxes have the rest",
            hint=f"Stop or delete another agent, or give {flag} a number.",
        )
    return most


def _unusable(flag: str, text: str, accepted: str) -> UsageError:
    return UsageError(f"{flag} can't take '{line(text, 40)}'", hint=f"Accepted: {accepted}.")
