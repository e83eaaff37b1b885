"""The kits that came from a registry: their files, and beside them the digest that each version has for good.

`kits/TYPE-VERSION.json` is written when everything of the kit lies, proved and synced, in a hidden folder beside
its place, and that folder is renamed next: whatever is cut off in between, the next pull of the same digest goes on.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from troupe_tasks import durable, strict
from troupe_tasks.errors import NotReady, Refused, RegistryFailed, StateUnreadable
from troupe_tasks.kits import archive, local, oci, pins
from troupe_tasks.kits.model import Kit
from troupe_tasks.paths import Paths


class Pulled(BaseModel):
    """A kit version from a registry, by the digest of its manifest; registry is where it came from first."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: oci.Name
    digest: oci.Digest
    registry: str = Field(max_length=300)


def find(paths: Paths, kind: str, version: str) -> Pulled | None:
    """Return what is known of a kit version, whole or not; raises StateUnreadable."""
    note = _note(paths, kind, version)
    try:
        found = strict.parse(Pulled, durable.read_private(note), place=note)
    except FileNotFoundError:
        return None
    if (found.name.type, found.name.version) != (kind, version):
        raise StateUnreadable(f"{note} tells of another kit")
    return found


def everything(paths: Paths) -> list[Pulled]:
    """Return every kit that was pulled and is there, whole, by type and version."""
    named = (note.stem.rpartition("-") for note in paths.kits.glob("[a-z]*-*.json"))
    found = (find(paths, kind, version) for kind, _, version in named)
    whole = [
        one
        for one in found
        if one is not None and pins.place(paths, one.name.type, one.name.version).is_dir()
    ]
    return sorted(whole, key=lambda one: (one.name.type, oci.order(one.name.version)))


def kit(paths: Paths, kind: str, version: str, digest: str) -> Kit | None:
    """Return a kit version that is here, whole; raises Refused when another one goes by that version."""
    found = find(paths, kind, version)
    if found is None:
        return None
    if found.digest != digest:
        raise moved(paths, found, digest)
    return pins.pinned(paths, kind, version) if pins.place(paths, kind, version).is_dir() else None


def moved(paths: Paths, known: Pulled, digest: str) -> Refused:
    """Return the error for a version that was given another digest since it was first pulled here."""
    name = known.name
    return Refused(
        f"the kit {name.type} {name.version} has moved in the registry",
        cause=f"here it is {known.digest}, there {digest}",
        hint="A version never moves: ask who publishes it for a new version. If no agent here uses the old one and "
        f"you trust the new one, remove {_note(paths, name.type, name.version)} and the folder beside it.",
    )  # fmt: skip


def keep(paths: Paths, new: Pulled, layer: bytes) -> Kit:
    """Unpack a kit and put it in its place; the caller holds the kit's lock, and has proved the layer's digest.

    Raises Refused for an archive that is no kit's, and for files that differ from those of this version here.
    """
    name = new.name
    place = pins.place(paths, name.type, name.version)
    beside = place.with_name(f".{place.name}.new")
    durable.remove_tree(beside)
    try:
        archive.unpack(layer, beside)
        _prove(beside, name)
        if place.is_dir() and pins.content(place) != pins.content(beside):
            raise Refused(
                f"the kit {name.type} {name.version} is here already, with other files",
                cause=f"it was first used from troupe's own kits, not from {new.registry}",
                hint="A version never moves: ask who publishes it for a new version. If no agent here uses the old "
                f"one, remove {place}.",
            )  # fmt: skip
        durable.write(_note(paths, name.type, name.version), new.model_dump_json(indent=1).encode() + b"\n")
        if not place.is_dir():
            durable.rename(beside, place)
    finally:
        durable.remove_tree(beside)
    return pins.pinned(paths, name.type, name.version)


def _prove(folder: Path, name: oci.Name) -> None:
    try:
        found = local.read(folder, name=name.type)
    except (NotReady, OSError) as error:
        raise RegistryFailed(
            f"what came as {name.type} {name.version} is no kit that this troupe can read", cause=str(error)
        ) from error
    if found.version != name.version:
        raise RegistryFailed(f"what came as {name.type} {name.version} calls itself {found.version}")


def _note(paths: Paths, kind: str, version: str) -> Path:
    return paths.kits / f"{kind}-{version}.json"
