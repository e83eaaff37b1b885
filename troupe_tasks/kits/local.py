"""Find a kit by its type among those that troupe brings."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import ValidationError

from troupe_tasks import resources, strict
from troupe_tasks.errors import NotReady, UsageError
from troupe_tasks.kits import seeds
from troupe_tasks.kits.model import Kit
from troupe_tasks.kits.services import Service, Services
from troupe_tasks.text import line

_CAP_BYTES = 1 << 18
_NEEDED = ("SOUL.md", "requirements.lock")


def types(folder: Path | None = None) -> list[str]:
    """Return the types that there are kits of, sorted."""
    place = folder or resources.kits_dir()
    return sorted(found.parent.name for found in place.glob("*/kit.toml"))


def find(kind: str, folder: Path | None = None) -> Kit:
    """Return the kit of a type; an unknown type is a UsageError that lists the known ones."""
    place = folder or resources.kits_dir()
    known = types(place)
    if kind not in known:
        hint = f"The types are: {', '.join(known)}." if known else "This troupe brings no kits."
        raise UsageError(f"there is no kit of type {line(kind, 60)!r}", hint=hint)
    return read(place / kind, name=kind)


def read(folder: Path, *, name: str) -> Kit:
    """Return the kit in a folder; an unknown key, a wrong type or another kit's name is told and refused."""
    source = folder / "kit.toml"
    try:
        with source.open("rb") as file:
            values = tomllib.loads(file.read(_CAP_BYTES).decode())
        services = _services(folder / "services.json")
        kit = Kit.model_validate({**values, "services": services, "folder": folder})
        # Every command on an agent reads its kit: what can be no seed is told, none is read.
        seeds.names(folder)
        _refuse_without_files(folder)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unusable(source, line(str(error))) from error
    except ValidationError as error:
        raise _unusable(source, strict.complaint(error)) from error
    except ValueError as error:
        raise _unusable(source, line(str(error))) from error
    if kit.name != name:
        raise _unusable(source, f"it calls itself {kit.name}, and {line(name, 60)} was asked for")
    return kit


def _refuse_without_files(folder: Path) -> None:
    """Raise ValueError for a kit that no agent could be made from, before anybody publishes it or begins to."""
    for name in _NEEDED:
        if not (folder / name).is_file():
            raise ValueError(f"there is no {name} beside it")


def _services(source: Path) -> tuple[Service, ...]:
    """Return what services.json declares; a kit without one has no services."""
    if not source.exists():
        return ()
    try:
        with source.open("rb") as file:
            return Services.model_validate_json(file.read(_CAP_BYTES)).services
    except ValidationError as error:
        raise _unusable(source, strict.complaint(error)) from error


def _unusable(source: Path, cause: str) -> NotReady:
    return NotReady(f"{source} is no kit that this troupe can read", cause=cause,
                    hint="Mend what the cause names, or check the kit out afresh.")  # fmt: skip
