"""What is kept about each sandbox that Docker runs for us.

Its file is written before anything is made and holds a name with a random part: what bears that name is ours, and a
name is never used twice, so a sandbox made anew can't be taken for one that was lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from troupe_tasks import durable, strict
from troupe_tasks.errors import AlreadyExists, FolderUnusable, SandboxGone
from troupe_tasks.paths import Paths
from troupe_tasks.sandbox.protocol import SandboxSpec

_FILE = "sbx.json"
_USED = "used-mib"


class Saved(BaseModel):
    """One sandbox's own file. identity is Docker's, None until the making of it has ended well.

    removing says that its removal has begun.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    spec: SandboxSpec
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$")
    identity: str | None = Field(default=None, max_length=200)
    removing: bool = False

    @model_validator(mode="before")
    @classmethod
    def _without_used(cls, data: object) -> object:
        """Pass over what a file held before that had one of its own."""
        return (
            {key: value for key, value in data.items() if key != "used_mib"}
            if isinstance(data, dict)
            else data
        )


def place(paths: Paths, sandbox_id: str) -> Path:
    """Return the folder of what is kept about a sandbox: not where another driver keeps its own of the same ID."""
    return paths.data / "sbx" / sandbox_id


def folders(paths: Paths) -> Iterator[str]:
    """Yield the ID of every sandbox that Docker runs for us."""
    root = place(paths, "x").parent
    if root.is_dir():
        yield from sorted(entry.name for entry in root.iterdir() if (entry / _FILE).exists())


def load(paths: Paths, sandbox_id: str) -> Saved:
    """Return what is kept about a sandbox. Raises SandboxGone, StateUnreadable."""
    file = place(paths, sandbox_id) / _FILE
    try:
        return strict.parse(Saved, durable.read_private(file), place=file)
    except FileNotFoundError:
        raise SandboxGone(f"there is no sandbox {sandbox_id}") from None


def keep(paths: Paths, saved: Saved) -> Saved:
    """Write a sandbox's file."""
    folder = durable.make_private_dir(place(paths, saved.spec.id))
    durable.write(folder / _FILE, saved.model_dump_json(indent=1).encode() + b"\n")
    return saved


def used_mib(paths: Paths, sandbox_id: str) -> int:
    """Return what a sandbox's disk held when it was last asked."""
    try:
        text = durable.read_private(place(paths, sandbox_id) / _USED)
    except FileNotFoundError:
        return 0
    return int(text) if text.isdigit() else 0


def keep_used(paths: Paths, sandbox_id: str, used: int) -> None:
    """Write what a sandbox's disk holds, beside its own file: nobody who asks for it holds a lock."""
    with suppress(FolderUnusable):  # it may have been removed meanwhile
        durable.write(place(paths, sandbox_id) / _USED, b"%d" % used)


def begin(paths: Paths, spec: SandboxSpec) -> Saved:
    """Return the file of a sandbox of this spec, new or not. Raises AlreadyExists when there is another plan."""
    try:
        saved = load(paths, spec.id)
    except SandboxGone:
        # Docker takes 63 letters; an agent's ID may have more.
        return keep(paths, Saved(spec=spec, name=f"troupe-{spec.id[:40].rstrip('-')}-{secrets.token_hex(4)}"))
    if saved.spec != spec:
        raise AlreadyExists(f"there is a sandbox {spec.id} already, made to another plan")
    return saved


def forget(paths: Paths, sandbox_id: str) -> None:
    """Remove a sandbox's folder, its own file last."""
    folder = place(paths, sandbox_id)
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.name != _FILE:
            durable.remove_tree(entry)
    durable.remove_tree(folder)
    durable.sync_dir(folder.parent)
