"""What is known of an archive. All but Part comes from inside a sandbox, as small JSON: hostile until it is read."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from troupe_tasks.sandbox.protocol import WORKSPACE

FOLDERS = ("/state", WORKSPACE)
FILES = "files.tar"
HERMES = "hermes.zip"

# Of a member: headers of at most 1 KiB when its names are short, and padding up to 512 bytes.
_MEMBER_BYTES = 2048

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=1 << 62)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Counted(_Frozen):
    """How many there are, and the names of the first ones: escape them before they are shown."""

    count: Count = 0
    first: tuple[Annotated[str, Field(max_length=300)], ...] = Field(default=(), max_length=20)


class Manifest(_Frozen):
    """What there is in the folders, computed inside; bytes are those of the files' sizes, holes included.

    left_out is what no archive can hold (sockets), and is in no digest.
    """

    digest: Digest
    files: Count
    folders: Count
    links: Count
    pipes: Count
    bytes: Count
    left_out: Counted = Counted()

    def same(self, other: Manifest) -> bool:
        """Tell whether the other is of the same tree."""
        return self.model_copy(update={"left_out": other.left_out}) == other


class Sent(_Frozen):
    """What the inside says it has sent: how much, and the SHA-256 of samples of it."""

    bytes: Count
    sample: Digest


class Surveyed(Manifest):
    """A manifest, with what changed while it was made."""

    changed: Counted

    def manifest(self) -> Manifest:
        """Return the manifest alone."""
        return Manifest.model_validate(self.model_dump(include=set(Manifest.model_fields)))


class Report(_Frozen):
    """What the inside says after a stream."""

    stream: Sent


class FilesReport(Surveyed, Report):
    """What the inside says after it wrote an archive; raw are databases that it could only send as they lie."""

    raw: Counted


class Failure(_Frozen):
    """What the inside says when it could not do it."""

    error: Annotated[str, Field(max_length=1000)]


class Measured(_Frozen):
    """What the folders take on their disk, and how many entries they have."""

    bytes: Count
    entries: Count

    @property
    def archive_bytes(self) -> int:
        """Return what an archive of it may take, with ordinary names."""
        return self.bytes + self.entries * _MEMBER_BYTES


class Part(_Frozen):
    """One file of an archive, as it was hashed on its way to the disk."""

    name: Annotated[str, Field(pattern=r"^[a-z]+\.[a-z]+$", max_length=40)]
    bytes: Count
    sha256: Digest


class Archive(_Frozen):
    """A whole archive: its parts on the host, what was in them, and which databases lie in them as they were."""

    parts: tuple[Part, ...] = Field(min_length=1, max_length=4)
    manifest: Manifest
    raw: Counted = Counted()

    def part(self, name: str) -> Part | None:
        """Return a part by its name."""
        return next((part for part in self.parts if part.name == name), None)
