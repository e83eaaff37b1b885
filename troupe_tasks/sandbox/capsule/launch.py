"""Put a process into a place of its own before it becomes the runtime.

As root that place is a private mount namespace: a small tmpfs that everyone may search, with the image, the
agent's disk and the socket's folder bound beneath it. The runtime's own processes run as the agent's host uid,
which could not come through a 0700 home, and every mount (and the loop device) ends with the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from troupe_tasks import process
from troupe_tasks.errors import NotReady

_ANCHORS = ("/mnt", "/media", "/srv", "/opt")

_JOIN = """\
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift
exec "$@" </dev/null >/dev/null 2>&1
"""

_MOUNT = """\
set -eu
cd /
anchor=$1 image=$2 disk=$3 egress=$4 guest=$5; shift 5
mount -t tmpfs -o mode=0711,size=64k,nr_inodes=32,nosuid,nodev,noexec troupe "$anchor"
mkdir -m 0711 "$anchor/image" "$anchor/disk" "$anchor/egress" "$anchor/guest"
mount --bind "$image" "$anchor/image"
mount --bind "$egress" "$anchor/egress"
mount --bind "$guest" "$anchor/guest"
mount -t ext4 -o loop,nosuid,nodev,noatime "$disk" "$anchor/disk"
"""


@dataclass(frozen=True)
class Places:
    """Where the runtime finds what it mounts into a sandbox."""

    image: Path
    disk: Path
    egress: Path
    guest: Path


def anchor(sources: Places) -> Path:
    """Return an existing folder to build the private place on: one that hides none of the sources."""
    kept = [path.resolve() for path in (sources.image, sources.disk, sources.egress, sources.guest)]
    for name in _ANCHORS:
        folder = Path(name)
        if folder.is_dir() and not any(path.is_relative_to(folder.resolve()) for path in kept):
            return folder
    raise NotReady("there is no folder to mount a sandbox's parts on", hint="Make an empty folder /mnt.")


def private(base: Path) -> Places:
    """Return the places as the runtime sees them beneath base."""
    return Places(base / "image", base / "disk", base / "egress", base / "guest")


def launch(
    command: Sequence[str | Path], *, groups: tuple[Path, ...], sources: Places | None, deadline_s: float
) -> process.Done:
    """Join the control groups and run command, which leaves the sandbox running; its output is dropped.

    With sources, in a private mount namespace that holds them (root only). Its status is the caller's to judge.
    """
    if sources is None:
        argv: list[str | Path] = ["sh", "-c", _JOIN, "sh", *groups, "--", *command]
    else:
        base = anchor(sources)
        parts = (base, sources.image, sources.disk, sources.egress, sources.guest)
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNT + _JOIN, "sh"]
        argv += [*parts, *groups, "--", *command]
    return process.run(argv, deadline_s=deadline_s, ok=None)
