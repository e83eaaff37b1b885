"""Bring an agent's seeded files up to its new kit version; the agent's own edits of them are kept on the host first."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, cast

from pydantic import Field, TypeAdapter, ValidationError

from troupe_tasks import durable
from troupe_tasks.errors import DiskFull, SandboxFailed
from troupe_tasks.kits import compose, seeds
from troupe_tasks.kits.model import Kit
from troupe_tasks.kits.seeds import Seed
from troupe_tasks.operations import gateway, vault
from troupe_tasks.operations.house import House
from troupe_tasks.record import Record
from troupe_tasks.sandbox.protocol import GUEST_DIR
from troupe_tasks.strict import complaint
from troupe_tasks.text import line

_State = Literal["absent", "new", "old", "edited", "large", "odd"]
# No plain file, or too large to be kept here: moved aside inside.
_ASIDE = ("odd", "large")
_States = TypeAdapter(dict[Annotated[str, Field(max_length=1000)], _State])
_EDIT_CAP_BYTES = 4 << 20
_DEADLINE_S = 60.0


def bring_up(house: House, there: Record, *, old: Kit, new: Kit) -> list[str]:
    """Give the sandbox that the record names the seeds of the new kit version; return the paths of edits replaced.

    A seed that the new version no longer has goes, unless the agent has edited it.
    """
    before = {seed.path: seed for seed in seeds.read(old.folder)}
    after = {seed.path: seed for seed in seeds.read(new.folder)}
    states = _look(house, there, before, after)
    folder = place(house, there.id, old.version, new.version)
    for path in [path for path, state in states.items() if path in after and state == "edited"]:
        _keep(house, there, path, folder / path)
    _apply(house, there, _changes(states, after))
    aside = [
        f"{path} (it is {path}.before now)"
        for path, state in states.items()
        if path in after and state in _ASIDE
    ]
    return [*kept(folder), *aside]


def place(house: House, agent_id: str, old: str, new: str) -> Path:
    """Return the folder of the edits that one upgrade replaced."""
    return house.paths.live_apply(agent_id) / f"{old}-to-{new}"


def forget(house: House, agent_id: str, old: str, new: str) -> None:
    """Remove the edits kept by an upgrade that replaced none in the end."""
    durable.remove_tree(place(house, agent_id, old, new))


def kept(folder: Path) -> list[str]:
    """Return the paths of the edits that lie in a folder, sorted."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return sorted(str(path.relative_to(folder)) for path in found)


def _program(work: str) -> list[str]:
    return ["/usr/bin/python3", "-I", "-S", f"{GUEST_DIR}/seeds.py", work, compose.HERMES_HOME]


def _look(
    house: House, there: Record, before: Mapping[str, Seed], after: Mapping[str, Seed]
) -> Mapping[str, _State]:
    asked = {
        path: [side[path].sha256 if path in side else None for side in (before, after)]
        for path in sorted({*before, *after})
    }
    ran = house.driver(there.driver).run(
        there.sandbox, _program("look"), stdin=json.dumps(asked).encode(), cwd="/", deadline_s=_DEADLINE_S
    )
    gateway.expect_success(ran, "looking at the seeded files")
    try:
        found = _States.validate_json(ran.stdout, strict=True)
    except ValidationError as error:
        raise SandboxFailed(
            f"what {there.sandbox} tells of its seeded files does not read", cause=line(complaint(error), 300)
        ) from None
    if set(found) != set(asked):
        raise SandboxFailed(f"{there.sandbox} tells of other seeded files than it was asked for")
    return found


def _keep(house: House, there: Record, path: str, target: Path) -> None:
    """Copy an edited file to the host, whole; its name is the kit's, its content is nothing that is read here."""
    if vault.spare_mib(house, target) << 20 < _EDIT_CAP_BYTES:
        raise DiskFull(f"no room left above the reserve to keep the agent's edit of {path}")
    durable.make_private_dir(target.parent)
    with durable.fresh(target) as file:
        done = house.driver(there.driver).stream(
            there.sandbox, ["/usr/bin/cat", "--", f"{compose.HERMES_HOME}/{path}"], deadline_s=_DEADLINE_S,
            cap_bytes=_EDIT_CAP_BYTES, sink=cast("BinaryIO", file),
        )  # fmt: skip
        if done.status != 0:
            raise SandboxFailed(f"{path} could not be copied out of {there.sandbox}")


def _changes(states: Mapping[str, _State], after: Mapping[str, Seed]) -> Iterable[tuple[str, Seed | None]]:
    for path, state in states.items():
        if path in after and state != "new":
            yield path, after[path]
        elif path not in after and state == "old":
            yield path, None


def _apply(house: House, there: Record, changes: Iterable[tuple[str, Seed | None]]) -> None:
    wanted = {
        path: {"data": base64.b64encode(seed.data).decode("ascii"), "mode": seed.mode} if seed else None
        for path, seed in changes
    }
    ran = house.driver(there.driver).run(
        there.sandbox, _program("apply"), stdin=json.dumps(wanted).encode(), cwd="/", deadline_s=_DEADLINE_S
    )
    gateway.expect_success(ran, "putting in the new seeds")
