"""`troupe create`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from troupe_tasks.commands.frame import command

if TYPE_CHECKING:
    from troupe_tasks.operations.create import Wish
    from troupe_tasks.operations.house import House

_SOUL_CAP_BYTES = 64 << 10


@command(
    example='troupe create hermes --name "Mr. Doyle" --rehearsal',
    flags={
        "kind": "The type of agent: the name of a kit.",
        "name": "What people call it, at most 35 characters; its ID is derived from it.",
        "cpu": "CPUs: a whole number, or max.",
        "memory": "Memory in GiB, or max.",
        "storage": "Disk in GiB, or max.",
        "soul": "A file with its persona, in place of the kit's.",
        "rehearsal": "Give it troupe's own stand-in model: no key, no network, everything else real.",
        "driver": "How its sandbox is made (capsule).",
        "force": "Create it even if the machine's budget does not hold it.",
    },
    positional=("kind",),
)
def create(
    context: Context,
    kind: str,
    name: str = "",
    cpu: str = "",
    memory: str = "",
    storage: str = "",
    soul: str = "",
    rehearsal: bool = False,
    driver: str = "",
    force: bool = False,
    json: bool = False,
    debug: bool = False,
) -> None:
    """Create an agent from a kit, start it and send it a first message."""
    from troupe_tasks.commands import output
    from troupe_tasks.errors import SelfTestFailed
    from troupe_tasks.operations.create import create as perform
    from troupe_tasks.operations.house import House
    from troupe_tasks.paths import Paths

    house = House(Paths.from_env())
    _check_driver(driver)
    wish = _wish(kind, name, sizes=(cpu, memory, storage), soul=soul, rehearsal=rehearsal, force=force)
    _check_machine(house)
    wish = _within_budget(house, wish)
    finish = _again(kind, name, cpu=cpu, memory=memory, storage=storage, soul=soul)
    with output.progress(quiet=json) as progress:
        record, result = perform(house, wish, finish=finish, told=progress.step)
    if json:
        output.show_json(
            {"agent": record.model_dump(mode="json"), "self_test": result.model_dump(mode="json")}
        )
    elif result.passed:
        print(
            f"{record.name} lives, as {record.id}, isolated by {record.isolation}. It says:\n\n{result.reply}\n"
        )
        print(f"Talk to it: troupe chat {record.id}")
    if not result.passed:
        raise SelfTestFailed(
            f"{record.id} was created, but its first message got no answer", cause=result.cause,
            hint=f"`troupe logs {record.id}` shows what it said; mend the cause, then `troupe restart {record.id}`.",
        )  # fmt: skip


def _wish(
    kind: str, name: str, *, sizes: tuple[str, str, str], soul: str, rehearsal: bool, force: bool
) -> Wish:
    from troupe_tasks.errors import Refused, UsageError
    from troupe_tasks.kits import local
    from troupe_tasks.names import agent_id
    from troupe_tasks.operations.create import Wish
    from troupe_tasks.sizes import Wanted, parse_cpus, parse_mib

    if not name:
        raise UsageError("an agent needs a name", hint='Give it one: --name "Mr. Doyle".')
    derived = agent_id(name)
    kit = local.find(kind)
    cpu, memory, storage = sizes
    wanted = Wanted(
        cpus=parse_cpus(cpu) if cpu else kit.sizes.cpus,
        memory_mib=parse_mib(memory, flag="--memory") if memory else kit.sizes.memory_mib,
        storage_mib=parse_mib(storage, flag="--storage") if storage else kit.sizes.storage_mib,
    )
    if not rehearsal:
        raise Refused(
            "this version of troupe makes rehearsal agents only", cause="it can't keep a model provider's key yet",
            hint="Pass --rehearsal.",
        )  # fmt: skip
    return Wish(
        derived, name, kit, rehearsal, wanted, soul=_read_soul(soul) if soul else None, over_budget=force
    )


def _read_soul(soul: str) -> str:
    from pathlib import Path

    from troupe_tasks.errors import UsageError

    try:
        with Path(soul).open("rb") as file:
            data = file.read(_SOUL_CAP_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"--soul can't read {soul[:200]!r}", cause=str(error)) from error
    if len(data) > _SOUL_CAP_BYTES or not text.strip():
        raise UsageError("--soul takes a text of 1 to 65536 bytes")
    return text


def _check_driver(driver: str) -> None:
    from troupe_tasks.config import DRIVERS
    from troupe_tasks.errors import UsageError

    if driver and driver not in DRIVERS:
        raise UsageError(
            f"there is no driver {driver[:40]!r}", hint=f"The drivers are: {', '.join(DRIVERS)}."
        )


def _check_machine(house: House) -> None:
    from troupe_tasks.commands.output import confirmed, note, progress, somebody_is_there
    from troupe_tasks.host import packages
    from troupe_tasks.operations.readiness import bring_programs, refuse_unready

    packages.ensure(say=note, ask=confirmed if somebody_is_there() else None)
    with progress() as shown:
        bring_programs(house, shown.step)
    refuse_unready(house)


def _within_budget(house: House, wish: Wish) -> Wish:
    from dataclasses import replace

    from troupe_tasks import record as records
    from troupe_tasks.commands.output import confirmed, note
    from troupe_tasks.operations import room

    if wish.over_budget or records.find(house.paths, wish.id) is not None:
        return wish
    verdict = room.verdict(house, wish.id, room.settled(house, wish.id, wish.wanted))
    verdict.raise_refusals()
    if not verdict.over:
        return wish
    for line in verdict.lines:
        note(line.show())
    if not confirmed("This machine's budget does not hold it. Create it all the same?"):
        verdict.raise_over()
    return replace(wish, over_budget=True)


def _again(kind: str, name: str, **flags: str) -> str:
    import shlex

    given = [f"--{flag}={value}" for flag, value in flags.items() if value]
    return shlex.join(["troupe", "create", kind, "--name", name, *given, "--rehearsal"])
