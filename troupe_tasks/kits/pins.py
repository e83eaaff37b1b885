"""The kits that agents were composed from, kept as they were: a version never moves under an agent."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from troupe_tasks import durable, locks
from troupe_tasks.errors import Refused, StateUnreadable
from troupe_tasks.kits import local
from troupe_tasks.kits.model import Kit
from troupe_tasks.paths import Paths


def pin(kit: Kit, paths: Paths) -> None:
    """Keep a kit's files; the same version with other files is refused."""
    home = place(paths, kit.name, kit.version)
    durable.make_private_dir(paths.kits)
    with locks.named(paths, f"kit-{kit.name}", wait_s=30):
        if home.is_dir():
            if content(home) != content(kit.folder):
                raise Refused(
                    f"the kit {kit.name} {kit.version} has changed since it was first used on this machine",
                    cause="a version never moves", hint=f"Raise the version in {kit.folder / 'kit.toml'}.",
                )  # fmt: skip
            return
        beside = home.with_name(f".{home.name}.new")
        durable.remove_tree(beside)
        with durable.told(beside):
            shutil.copytree(kit.folder, beside)
        durable.sync_tree(beside)
        durable.rename(beside, home)


def pinned(paths: Paths, name: str, version: str) -> Kit:
    """Return the kit that an agent was composed from."""
    home = place(paths, name, version)
    if not home.is_dir():
        raise StateUnreadable(f"the files of kit {name} {version} are gone from {home}")
    return local.read(home, name=name)


def place(paths: Paths, name: str, version: str) -> Path:
    """Return the folder of a kit version's files."""
    return paths.kits / f"{name}-{version}"


def content(folder: Path) -> str:
    """Return the digest of a kit's files."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            total.update(f"{path.relative_to(folder)} {len(data)}\n".encode() + data)
    return total.hexdigest()
