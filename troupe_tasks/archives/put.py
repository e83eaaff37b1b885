"""Put an archive into a fresh sandbox, and prove inside that all of it is there."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, cast

from troupe_tasks import process
from troupe_tasks.archives import inside
from troupe_tasks.archives.disk import Hashed, opened, rehash
from troupe_tasks.archives.model import FILES, FOLDERS, Archive, Manifest, Part
from troupe_tasks.archives.take import STALL_S, Reserve
from troupe_tasks.errors import BackupDamaged, DiskFull, SandboxFailed
from troupe_tasks.sandbox.protocol import Sandboxes
from troupe_tasks.text import line

_LOOK_BYTES = 32 << 20


class _Said:
    """The end of what the program inside says: why it ended as it did."""

    def __init__(self) -> None:
        self.last = b""

    def write(self, data: bytes) -> int:
        self.last = (self.last + data)[-1000:]
        return len(data)


class _Spared(Hashed):
    """An archive's file that is read only as long as this machine has room for what is made of it."""

    def __init__(self, file: BinaryIO, path: Path, part: Part, reserve: Reserve) -> None:
        super().__init__(file, path, part)
        self._reserve, self._left = reserve, 0

    def read(self, size: int = _LOOK_BYTES) -> bytes:
        """Return the next bytes; raise DiskFull once the reserve is reached."""
        if self._left <= 0:
            if self._reserve() <= 0:
                raise DiskFull("no room left above the reserve to fill the sandbox from its archive")
            self._left = _LOOK_BYTES
        data = super().read(size)
        self._left -= len(data)
        return data


def put(
    driver: Sandboxes,
    sandbox_id: str,
    folder: Path,
    archive: Archive,
    *,
    deadline_s: float,
    reserve: Reserve,
    stall_s: float = STALL_S,
) -> Manifest:
    """Replace all that a running sandbox has by an archive, and return what it has then: the archive's own manifest.

    reserve() says how many bytes may still be written now: the sandbox's disk grows meanwhile. It can be run again
    after it was stopped at any moment; after keep() it outlives a power cut. Raises DiskFull; BackupDamaged when the
    file is not what was written; SandboxFailed when the inside can't take it or has something else afterwards.
    """
    part = archive.part(FILES)
    if part is None:
        raise BackupDamaged(f"{folder} has no {FILES}")
    said = _Said()
    with opened(folder, part) as file:
        source = _Spared(file, folder / part.name, part, reserve)
        done = driver.stream(
            sandbox_id, inside.program("restore", *FOLDERS), deadline_s=deadline_s, stall_s=stall_s,
            cap_bytes=part.bytes, source=cast("BinaryIO", source), sink=cast("BinaryIO", said),
        )  # fmt: skip
        if done.status != 0:
            rehash(folder, archive)  # else whoever reads it would be blamed for a damaged file
            raise SandboxFailed(
                f"{sandbox_id} could not be filled from the archive", cause=line(said.last.strip(), 300)
            )
        source.prove()
    found = inside.survey(driver, sandbox_id, deadline_s=deadline_s)
    if not found.same(archive.manifest):
        raise SandboxFailed(
            f"{sandbox_id} does not hold what was archived",
            cause=f"{found.files} of {archive.manifest.files} files, {found.folders} of "
            f"{archive.manifest.folders} folders, {found.bytes} of {archive.manifest.bytes} bytes",
            hint="The archive is whole. Run it again: it begins anew.",
        )  # fmt: skip
    return found


def keep(driver: Sandboxes, sandbox_id: str, *, deadline_s: float) -> None:
    """Have all that a running sandbox holds outlive a power cut. Raises SandboxFailed, ToolTimeout.

    Its own kernel comes first, then this machine's: gVisor forgets the files that it has closed, and their last bytes
    are the host kernel's to write. It may wait for what others write, so it is for when something else is about to go.
    """
    flush(driver, sandbox_id, deadline_s=deadline_s)
    process.run(["sync"], deadline_s=deadline_s)


def flush(driver: Sandboxes, sandbox_id: str, *, deadline_s: float) -> None:
    """Have the sandbox's own kernel sync the files that it knows: enough for few and just written ones."""
    ran = driver.run(sandbox_id, ["/usr/bin/sync"], cwd="/", deadline_s=deadline_s)
    if ran.status != 0:
        raise SandboxFailed(f"{sandbox_id} could not sync its disk", cause=line(ran.stderr, 300))
