"""What the capsule keeps about each of its sandboxes, and the disk it gives them.

A sandbox's folder holds spec.json (written first, so that a killed create goes on with the same identity), the
disk (complete once it has its name), and what the engine needs for a run.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, RootModel

from troupe_tasks import durable, process, strict
from troupe_tasks.errors import AlreadyExists, FolderUnusable, NotReady, SandboxGone, StateUnreadable
from troupe_tasks.host import cgroups
from troupe_tasks.paths import Paths
from troupe_tasks.sandbox.protocol import Isolation, SandboxSpec

AGENT_UID = 1000
_UID_FIRST, _UID_STEP, _UID_SLOTS = 500_000_000, 65_536, 20_000
_SPEC_CAP = 1 << 20
_MOUNT_POINTS = ("state", "workspace", "tmp", "proc", "dev", "run/troupe/egress", "run/troupe/guest")


class Saved(BaseModel):
    """One sandbox's own file. uid_base is the host uid that is 0 inside; None when an ordinary user made it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    spec: SandboxSpec
    identity: str
    isolation: Isolation
    uid_base: int | None
    created_at: datetime

    @property
    def host_uid(self) -> int:
        """Return the host uid that owns /state and /workspace."""
        return os.geteuid() if self.uid_base is None else self.uid_base + AGENT_UID


class _Groups(RootModel[tuple[Path, ...]]):
    """The control groups of a sandbox's run."""


def folders(paths: Paths) -> Iterator[str]:
    """Yield the ID of every sandbox that has a folder."""
    if paths.sandboxes.is_dir():
        yield from sorted(entry.name for entry in paths.sandboxes.iterdir() if (entry / "spec.json").exists())


def load(paths: Paths, sandbox_id: str) -> Saved:
    """Return what is kept about a sandbox. Raises SandboxGone, StateUnreadable."""
    file = paths.sandbox(sandbox_id) / "spec.json"
    try:
        saved = strict.parse(Saved, durable.read_private(file, _SPEC_CAP), place=file)
    except FileNotFoundError:
        raise SandboxGone(f"there is no sandbox {sandbox_id}") from None
    if saved.spec.id != sandbox_id:  # whose disk would be taken for this one's
        raise StateUnreadable(f"{file} is not what troupe writes", cause="it is another sandbox's")
    return saved


def make_groups(paths: Paths, saved: Saved, limits: cgroups.Limits) -> tuple[Path, ...]:
    """Make the control groups of a run and note where they are."""
    groups = cgroups.make(_group_name(saved), limits)
    try:
        durable.write(_groups_file(paths, saved.spec.id), _Groups(groups).model_dump_json().encode())
    except BaseException:  # nobody else knows of them
        cgroups.remove(groups)
        raise
    return groups


def groups(paths: Paths, sandbox_id: str) -> tuple[Path, ...]:
    """Return the control groups of the last run: those that are noted, else those that bear the sandbox's name."""
    file = _groups_file(paths, sandbox_id)
    try:
        hint = "Restart the agent: a start writes it anew."
        return strict.parse(_Groups, durable.read_private(file), place=file, hint=hint).root
    except FileNotFoundError:
        return ()
    except StateUnreadable:
        found = cgroups.find(_group_name(load(paths, sandbox_id)))
        if not found:
            raise
        return found


def remove_groups(paths: Paths, sandbox_id: str) -> None:
    """Remove the control groups of the last run, and the note of them."""
    with suppress(SandboxGone, StateUnreadable):  # nothing says where they are
        cgroups.remove(groups(paths, sandbox_id))
    durable.remove_tree(_groups_file(paths, sandbox_id))


def _group_name(saved: Saved) -> str:
    return f"{saved.spec.id}.{saved.identity[:12]}"  # another home may have this ID


def _groups_file(paths: Paths, sandbox_id: str) -> Path:
    return paths.sandbox(sandbox_id) / "cgroups.json"


def save_new(paths: Paths, spec: SandboxSpec, isolation: Isolation) -> Saved:
    """Write a sandbox's file, or return the one that is there when it is for the same spec."""
    folder = durable.make_private_dir(paths.sandbox(spec.id))
    if (folder / "spec.json").exists():
        saved = load(paths, spec.id)
        if saved.spec != spec:
            raise AlreadyExists(f"there is a sandbox {spec.id} already, made to another plan")
        return saved
    check_image(spec.image)
    base = _free_uid_base(paths, spec.id) if os.geteuid() == 0 else None
    saved = Saved(
        spec=spec, identity=uuid.uuid4().hex, isolation=isolation, uid_base=base, created_at=datetime.now(UTC)
    )
    durable.write(folder / "spec.json", saved.model_dump_json(indent=1).encode())
    return saved


def check_image(image: Path) -> None:
    """Refuse an image that lacks a mount point: it is read-only, so none can be made later."""
    lacking = [name for name in _MOUNT_POINTS if not (image / name).is_dir()]
    if lacking:
        raise NotReady(
            f"the image {image} has no folder /{lacking[0]}", cause="a sandbox mounts it there",
            hint="Remove the image; the next create builds it again.",
        )  # fmt: skip


def _free_uid_base(paths: Paths, sandbox_id: str) -> int:
    """Return a range of 65,536 host uids that no other sandbox has.

    The search begins at a place of the sandbox's own, so that root's agents of another home, which are not seen
    from here, have other ranges in all likelihood.
    """
    taken = {_uid_base(paths, other) for other in folders(paths)}
    place = hashlib.sha256(os.fsencode(paths.sandbox(sandbox_id))).digest()
    first = int.from_bytes(place[:4]) % _UID_SLOTS
    for step in range(_UID_SLOTS):
        base = _UID_FIRST + (first + step) % _UID_SLOTS * _UID_STEP
        if base not in taken:
            return base
    raise NotReady(
        "every range of user IDs is taken by a sandbox", hint="Delete agents that you no longer need."
    )


def _uid_base(paths: Paths, sandbox_id: str) -> int | None:
    """Return where a sandbox's range begins, also of one whose file does not read; None when nothing is its own."""
    try:
        return load(paths, sandbox_id).uid_base
    except SandboxGone:  # removed while we looked, the disk first
        return None
    except StateUnreadable:
        with suppress(FileNotFoundError):  # none is in use before there is a disk
            return (paths.sandbox(sandbox_id) / "disk.ext4").lstat().st_gid - AGENT_UID
        return None


def has_disk(paths: Paths, saved: Saved) -> bool:
    """Tell whether a sandbox's disk is complete."""
    return disk(paths, saved).exists()


def disk(paths: Paths, saved: Saved) -> Path:
    """Return where a sandbox's disk is: an ext4 image, or a folder where only root could mount one."""
    return paths.sandbox(saved.spec.id) / ("disk" if saved.uid_base is None else "disk.ext4")


def make_disk(paths: Paths, saved: Saved) -> None:
    """Make the disk with an empty state/ and workspace/; one that is complete is never touched."""
    target = disk(paths, saved)
    if target.exists():
        return
    fresh = target.with_name(f"{target.name}.new")
    seed = target.with_name("seed")
    for leftover in (fresh, seed):
        durable.remove_tree(leftover)
    tree = fresh if saved.uid_base is None else seed
    for name in ("state", "workspace"):
        (tree / name).mkdir(parents=True, mode=0o700)
        os.chown(tree / name, saved.host_uid, saved.host_uid if saved.uid_base is not None else -1)
    if saved.uid_base is not None:
        _format(fresh, seed, saved.spec.sizes.storage_mib)
        # Its group, which the mode gives nothing, says whose range it is if spec.json is ever damaged.
        os.chown(fresh, -1, saved.host_uid)
        durable.remove_tree(seed)
    fresh.rename(target)
    durable.sync_dir(target.parent)


def _format(image: Path, seed: Path, size_mib: int) -> None:
    handle = os.open(image, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.ftruncate(handle, size_mib << 20)
        # -m 0: nothing inside is root, so blocks kept for root would be lost; -d copies the seed's owners as well.
        process.run(["mkfs.ext4", "-q", "-F", "-m", "0", "-d", seed, image], deadline_s=120)
        os.fsync(handle)
    finally:
        os.close(handle)


def used_mib(paths: Paths, saved: Saved) -> int:
    """Return what the disk takes on the host, rounded up."""
    target = disk(paths, saved)
    if target.is_file():
        return -(-target.stat().st_blocks * 512 >> 20)
    # A walk that calls itself ends where an agent nests folders a thousand deep.
    total, waiting = 0, [str(target)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as found:  # removed while we looked, or closed
            for entry in found:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return -(-total >> 20)


def forget(paths: Paths, sandbox_id: str) -> None:
    """Remove a sandbox's folder: the disk first and spec.json last, so that a killed removal can go on."""
    folder = paths.sandbox(sandbox_id)
    if folder.is_symlink():  # and what it leads to is somebody's own
        raise FolderUnusable(f"{folder} is a link, which troupe follows nowhere")
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.name != "spec.json":
            durable.remove_tree(entry)
    durable.remove_tree(folder)
