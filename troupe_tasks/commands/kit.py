"""`troupe kit pack|publish|pull|list|inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from troupe_tasks.commands.frame import command

if TYPE_CHECKING:
    from troupe_tasks.kits.settings import When
    from troupe_tasks.operations.kit import Inspected, KitService, Version

_FOLDER = {"folder": "The kit's folder, named as the kit is."}
_KIT = {"kit": "TYPE, or TYPE:VERSION; without a version it is the latest."}


@command(
    example="troupe kit pack kits/hermes", positional=("folder",),
    flags={**_FOLDER, "output": "The archive's file; else TYPE-VERSION.tar here."},
)  # fmt: skip
def pack(context: Context, folder: str, output: str = "", json: bool = False, debug: bool = False) -> None:
    """Make a kit's archive: the same bytes every time; its digest is the one that a registry will have."""
    from pathlib import Path

    from troupe_tasks import durable
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.kits import publish
    from troupe_tasks.text import escape

    artifact = publish.packed(Path(folder))
    name = artifact.name
    file = Path(output or f"{name.type}-{name.version}.tar").absolute()
    durable.write(file, artifact.layer, 0o644)
    if json:
        show_json(
            {**name.model_dump(), "digest": artifact.digest, "file": str(file), "bytes": len(artifact.layer)}
        )
    else:
        print(
            f"{escape(str(file))}: {name.type} {name.version}, {len(artifact.layer)} bytes, {artifact.digest}"
        )


@command(
    example="troupe kit publish kits/hermes registry.example.com/kits",
    flags={**_FOLDER, "registry": "Where to: HOST[:PORT]/PATH."}, positional=("folder", "registry"), name="publish",
)  # fmt: skip
def publish_(context: Context, folder: str, registry: str, json: bool = False, debug: bool = False) -> None:
    """Put a kit into a registry, under a version that never moves from then on, and have latest name it."""
    from pathlib import Path

    from troupe_tasks.commands import output, questions
    from troupe_tasks.errors import RegistryFailed
    from troupe_tasks.kits import publish
    from troupe_tasks.operations.house import House
    from troupe_tasks.operations.kit import opened
    from troupe_tasks.paths import Paths
    from troupe_tasks.text import escape

    artifact = publish.packed(Path(folder))
    with output.progress(quiet=json) as progress:
        to = opened(House(Paths.from_env()), questions.Logins(progress), place=registry)
        try:
            done = publish.publish(artifact, to, progress.step)
        except RegistryFailed as error:
            if error.hint == RegistryFailed.hint:  # which names a setting, and no setting was asked
                error.hint = f"Check the network and the place, {registry}, then run the same command again."
            raise
    name = artifact.name
    if json:
        output.show_json(
            {**name.model_dump(), "digest": artifact.digest, "registry": registry, "latest": done.latest}
        )
        return
    print(f"{escape(to.place.text)}/{name.type}:{name.version} is {artifact.digest}")
    print(f"latest is {done.latest}")


@command(example="troupe kit pull hermes", flags=_KIT, positional=("kit",))
def pull(context: Context, kit: str, json: bool = False, debug: bool = False) -> None:
    """Bring a kit from the registry and pin its version to its digest."""
    from troupe_tasks.commands import output, questions
    from troupe_tasks.operations import kit as kits
    from troupe_tasks.operations.house import House
    from troupe_tasks.paths import Paths
    from troupe_tasks.text import escape

    with output.progress(quiet=json) as progress:
        found = kits.pull(House(Paths.from_env()), kit, login=questions.Logins(progress), told=progress.step)
    if json:
        name = {"type": found.kit.name, "version": found.kit.version}
        output.show_json({**name, "digest": found.digest, "folder": str(found.kit.folder)})
    else:
        print(f"{found.kit.name} {found.kit.version} {found.digest} is in {escape(str(found.kit.folder))}")


@command(example="troupe kit list", flags={}, name="list")
def listing(context: Context, json: bool = False, debug: bool = False) -> None:
    """List the kits that the registry has and those that were pulled, with their digests."""
    from troupe_tasks.commands import output, questions
    from troupe_tasks.operations.house import House
    from troupe_tasks.operations.kit import kits
    from troupe_tasks.paths import Paths
    from troupe_tasks.text import table

    with output.progress(quiet=True) as progress:
        found = kits(House(Paths.from_env()), login=questions.Logins(progress))
    if json:
        output.show_json(found)
        return
    if not found.complete:
        output.note(f"{found.registry} does not tell which kits it has; these are types pulled before.")
    if not found.versions:
        print("No kits.")
        return
    print(table(("TYPE", "VERSION", "", "PULLED", "DIGEST"), [_row(one) for one in found.versions]))
    for one in found.versions:
        if one.moved:
            print(f"{one.type} {one.version} has MOVED: {one.pulled} was pulled. `create` refuses it.")


def _row(one: Version) -> tuple[str, ...]:
    where = "latest" if one.latest else "troupe's own" if one.own else ""
    return (one.type, one.version, where, "yes" if one.pulled else "-", one.in_registry or one.pulled or "-")


@command(example="troupe kit inspect hermes:1.2.3", flags=_KIT, positional=("kit",))
def inspect(context: Context, kit: str, json: bool = False, debug: bool = False) -> None:
    """Show what a kit says about itself: services, settings, sizes, the hosts it wants to reach, its digest."""
    from troupe_tasks.commands import output, questions
    from troupe_tasks.operations import kit as kits
    from troupe_tasks.operations.house import House
    from troupe_tasks.paths import Paths
    from troupe_tasks.text import escape

    with output.progress(quiet=json) as progress:
        found = kits.inspect(
            House(Paths.from_env()), kit, login=questions.Logins(progress), told=progress.step
        )
    if json:
        output.show_json(found)
        return
    for heading, lines in _parts(found):
        print(heading)
        for line in lines or ["none"]:
            print(f"  {escape(line)}")


def _only(when: When | None) -> str:
    return f", if {when.setting} is {when.value}" if when else ""


def _needed(service: KitService) -> str:
    return f"{'required' if service.required else 'optional'}{_only(service.when)}"


def _parts(found: Inspected) -> list[tuple[str, list[str]]]:
    from troupe_tasks.sizes import show

    sizes = show(
        cpus=found.cpus, memory_mib=found.memory_mib, storage_mib=found.storage_mib, docker_mib=found.docker_mib
    )  # fmt: skip
    services = [
        f"{one.name} ({_needed(one)}) to {', '.join(one.hosts)}: {one.line}" for one in found.services
    ]
    settings = [
        f"{one.name} ({one.form}{f', {one.default} by default' if one.default else ''}{_only(one.when)}): {one.ask}"
        for one in found.settings
    ]
    return [
        (f"{found.type} {found.version}", [found.summary, found.digest or "one of troupe's own", sizes]),
        ("services", services),
        ("settings", settings),
        (
            "hosts open to the policy balanced",
            [f"{one.host}:{','.join(map(str, one.ports))}" for one in found.egress],
        ),
    ]
