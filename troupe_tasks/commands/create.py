"""`troupe create`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from troupe_tasks.commands.frame import command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from troupe_tasks.operations.create import Wish
    from troupe_tasks.operations.house import House
    from troupe_tasks.operations.kit import Found
    from troupe_tasks.record import KeyTier, Policy

_SOUL_CAP_BYTES = 64 << 10


@command(
    example='troupe create hermes --name "Mr. Doyle" --rehearsal',
    flags={
        "kind": "The type of agent: the name of a kit, the latest of the registry if one is set.",
        "name": "What people call it, at most 35 characters; its ID is derived from it.",
        "cpu": "CPUs: a whole number, or max.",
        "memory": "Memory in GiB, or max.",
        "storage": "Disk in GiB, or max.",
        "docker": "A disk for Docker's images and build cache in GiB, or max; only sbx makes one.",
        "soul": "A file with its persona, in place of the kit's.",
        "rehearsal": "Give it troupe's own stand-in model: no key, no network, everything else real.",
        "setting": "One of the kit's settings, as NAME=VALUE; what is not given is asked, or its default taken.",
        "policy": "What it may reach: balanced (what the kit declares), locked (its model alone) or open.",
        "driver": "How its sandbox is made: sbx (Docker Sandboxes) or capsule; without it the strongest that is ready.",
        "force": "Create it even if the machine's budget does not hold it.",
    },
    positional=("kind",),
    iterable=("setting",),
)
def create(
    context: Context,
    kind: str,
    name: str = "",
    cpu: str = "",
    memory: str = "",
    storage: str = "",
    docker: str = "",
    soul: str = "",
    rehearsal: bool = False,
    setting: list[str] = [],  # noqa: B006 - Invoke reads from it that the flag may come often, and copies it
    policy: str = "balanced",
    driver: str = "",
    force: bool = False,
    json: bool = False,
    debug: bool = False,
) -> None:
    """Create an agent from a kit, start it and send it a first message."""
    from troupe_tasks import sizes
    from troupe_tasks.commands import output
    from troupe_tasks.errors import SelfTestFailed
    from troupe_tasks.operations import room
    from troupe_tasks.operations.create import Wish
    from troupe_tasks.operations.create import create as perform
    from troupe_tasks.operations.house import House
    from troupe_tasks.paths import Paths

    _check_driver(driver)
    mode, persona = checked_policy(policy), _read_soul(soul) if soul else None
    typed = sizes.typed(cpu=cpu, memory=memory, storage=storage, docker=docker)
    agent_id = _agent_id(name)
    house = House(Paths.from_env(), wanted=driver or None)
    tier = "none" if rehearsal else _accepted_tier(house, agent_id)
    _check_machine(house, quiet=json)
    found = _found(house, agent_id, kind, quiet=json)
    wanted = room.wanted(house.chosen, found.kit, found.kit.sizes, typed)
    wish = Wish(
        agent_id, name, found.kit, rehearsal, wanted, digest=found.digest, soul=persona,
        key_tier=tier, policy=mode, over_budget=force,
    )  # fmt: skip
    given = _settings(wish, setting)
    if not rehearsal:
        wish = _with_keys(house, wish, given)
    wish = _within_budget(house, wish)
    flags = {
        "cpu": cpu,
        "memory": memory,
        "storage": storage,
        "docker": docker,
        "soul": soul,
        "policy": policy,
        "driver": driver,
    }
    finish = _again(kind, name, flags, rehearsal=rehearsal, settings=wish.settings)
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
            f"{record.id} was created, but its first message got no answer", cause=result.cause
        )


def _agent_id(name: str) -> str:
    from troupe_tasks.errors import UsageError
    from troupe_tasks.names import agent_id

    if not name:
        raise UsageError("an agent needs a name", hint='Give it one: --name "Mr. Doyle".')
    return agent_id(name)


def _found(house: House, agent_id: str, kind: str, *, quiet: bool) -> Found:
    """Return the kit, which a token may have to be asked for: after the machine was looked at, and found well."""
    from troupe_tasks.commands import questions
    from troupe_tasks.commands.output import progress
    from troupe_tasks.operations.kit import for_create

    with progress(quiet=quiet) as shown:
        logins = questions.Logins(shown)
        found = for_create(house, agent_id, kind, login=logins, told=shown.step)
        logins.hand_over(house.chosen)
        return found


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


def _check_machine(house: House, *, quiet: bool) -> None:
    from troupe_tasks.commands.output import confirmed, note, progress, somebody_is_there
    from troupe_tasks.host import packages
    from troupe_tasks.operations.readiness import bring_programs, refuse_unready

    packages.ensure(driver=house.chosen, say=note, ask=confirmed if somebody_is_there() else None)
    with progress(quiet=quiet) as shown:
        bring_programs(house, shown.step)
    refuse_unready(house)


def _within_budget(house: House, wish: Wish) -> Wish:
    from dataclasses import replace

    from troupe_tasks import record as records
    from troupe_tasks.commands.budget import accepted
    from troupe_tasks.operations import room

    if wish.over_budget or records.find(house.paths, wish.id) is not None:
        return wish
    verdict = room.verdict(house, wish.id, room.settled(house, wish.id, wish.wanted))
    return replace(wish, over_budget=accepted(verdict, force=False, question="Create it all the same?"))


def checked_policy(text: str) -> Policy:
    """Return the policy that text names; raises UsageError."""
    from typing import get_args

    from troupe_tasks.errors import UsageError
    from troupe_tasks.record import Policy

    for known in get_args(Policy):
        if text == known:
            return known  # type: ignore[no-any-return]
    raise UsageError(
        f"there is no policy {text[:40]!r}", hint=f"It is one of: {', '.join(get_args(Policy))}."
    )


def _settings(wish: Wish, pairs: list[str]) -> dict[str, str]:
    """Return the settings given by flag, each checked before the others are asked for."""
    from troupe_tasks.errors import UsageError
    from troupe_tasks.kits.settings import value
    from troupe_tasks.text import line

    given: dict[str, str] = {}
    declared = {setting.name: setting for setting in wish.kit.settings}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name in given:
            raise UsageError(f"--setting takes NAME=VALUE, each name once, not {line(pair, 60)!r}")
        if wish.rehearsal or name not in declared:
            known = ", ".join(declared) if not wish.rehearsal else ""
            hint = f"The kit's settings are: {known}." if known else "There are none for this agent."
            raise UsageError(f"there is no setting {line(name, 60)!r}", hint=hint)
        given[name] = value(declared[name], text)
    return given


def _accepted_tier(house: House, agent_id: str) -> KeyTier:
    """Ask how its keys and its sandbox will be, before anything is done; an interrupted create was asked already."""
    from troupe_tasks import record as records
    from troupe_tasks.commands import questions
    from troupe_tasks.keystore import choose

    known = records.find(house.paths, agent_id)
    if known is not None:
        return known.key_tier
    choice = choose.strongest()
    questions.accept_tier(choice)
    questions.accept_isolation(house)
    return choice.tier.value


def _with_keys(house: House, wish: Wish, given: dict[str, str]) -> Wish:
    """Ask for the settings and the keys; what an interrupted create has already is not asked again."""
    from dataclasses import replace

    from troupe_tasks import record as records
    from troupe_tasks.commands import questions
    from troupe_tasks.operations.wiring import kept_keys

    known = records.find(house.paths, wish.id)
    kept = kept_keys(house, wish.id)
    if known is not None and set(kept) >= set(known.services):
        return replace(wish, settings=known.settings, services=known.services)
    settings = dict(known.settings) if known is not None else questions.settings(wish.kit, given)
    services, keys = questions.keys(wish.kit, settings, kept=kept)
    return replace(wish, settings=settings, services=services, keys=keys)


def _again(
    kind: str, name: str, flags: Mapping[str, str], *, rehearsal: bool, settings: Mapping[str, str]
) -> str:
    import shlex

    given = [
        f"--{flag}={value}"
        for flag, value in flags.items()
        if value and (flag, value) != ("policy", "balanced")
    ]
    given += [f"--setting={name}={value}" for name, value in settings.items()]
    return shlex.join(
        ["troupe", "create", kind, "--name", name, *given, *(["--rehearsal"] if rehearsal else [])]
    )
