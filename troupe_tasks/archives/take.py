"""Take an archive out of a sandbox: every part streamed to a file, proved against what the inside says it sent.

A folder holds one archive. archive.json is written last: a folder without it holds nothing that counts.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from troupe_tasks import durable
from troupe_tasks.archives import inside
from troupe_tasks.archives.disk import RECORD, discard
from troupe_tasks.archives.model import FILES, FOLDERS, HERMES, Archive, FilesReport, Part, Report, Sent
from troupe_tasks.errors import AlreadyExists, DiskFull, SandboxFailed
from troupe_tasks.record import agent_of
from troupe_tasks.sandbox.protocol import Sandboxes
from troupe_tasks.text import line

_LOOK_BYTES = 32 << 20
_TOLD_S = 5.0
# What the inside hashes a second time: of each 64 KiB the first 4. It finds what a transfer can do wrong, a piece that
# is lost or comes twice, since all after it has moved; a hash of everything would take a third of the speed.
_SAMPLE, _SAMPLE_EVERY = 4096, 65536
STALL_S = 300.0

Reserve = Callable[[], int]
Told = Callable[[str], None]
_Report = TypeVar("_Report", bound=Report)


class _Sink:
    """A file that is never written past what the host has to spare, which is looked at again and again."""

    def __init__(self, file: durable.Fresh, name: str, reserve: Reserve, told: Told) -> None:
        self._file, self._name, self._reserve, self._told = file, name, reserve, told
        self._may, self._next_s = 0, time.monotonic() + _TOLD_S
        self._sample = hashlib.sha256()

    def came(self) -> Sent:
        """Return what was written, as the inside should tell it."""
        return Sent(bytes=self._file.bytes, sample=self._sample.hexdigest())

    def write(self, data: bytes) -> int:
        if len(data) > self._may:
            self._may = min(self._reserve(), max(_LOOK_BYTES, len(data)))
            if len(data) > self._may:
                raise DiskFull(
                    f"no room left above the reserve to write {self._name}",
                    cause=f"{self._file.bytes >> 20} MiB were written, and were removed again",
                )
        self._may -= len(data)
        if time.monotonic() > self._next_s:
            self._told(f"{self._name}: {self._file.bytes >> 20} MiB")
            self._next_s = time.monotonic() + _TOLD_S
        view = memoryview(data)
        for begin in range(-(self._file.bytes % _SAMPLE_EVERY), len(data), _SAMPLE_EVERY):
            self._sample.update(view[max(0, begin) : max(0, begin + _SAMPLE)])
        return self._file.write(data)


def take(
    driver: Sandboxes,
    sandbox_id: str,
    folder: Path,
    *,
    cap_bytes: int,
    reserve: Reserve,
    deadline_s: float,
    told: Told,
    hermes: Sequence[str] = (),
    stall_s: float = STALL_S,
) -> Archive:
    """Archive a running sandbox, whose gateway is stopped, into a folder, and return what was archived.

    cap_bytes bounds all parts together; reserve() says how many bytes may still be written now. deadline_s bounds
    each part, stall_s each standstill. hermes are the words that make Hermes's own backup in {file}. On an error
    nothing is left of it. Raises SandboxFailed, DiskFull; AlreadyExists when the folder holds an archive.
    """
    durable.make_private_dir(folder)
    if (folder / RECORD).exists():
        raise AlreadyExists(f"{folder} holds an archive already", hint="Take this one into another folder.")
    discard(folder)
    job = _Job(driver, sandbox_id, folder, reserve, deadline_s, stall_s, told)
    own: list[Part] = []
    try:
        if hermes:  # first: Hermes touches its own files
            own += job.hermes(hermes, cap_bytes)
        left = cap_bytes - sum(part.bytes for part in own)
        part, report = job.part(
            FILES, lambda nonce: inside.program("archive", "files", nonce, *FOLDERS), FilesReport, left
        )
        if report.changed.count:
            raise inside.changed(sandbox_id, report)
        _tell(report, told)
        archive = Archive(parts=(part, *own), manifest=report.manifest(), raw=report.raw)
        durable.write(folder / RECORD, archive.model_dump_json(indent=1).encode())
    except BaseException:
        discard(folder)
        raise
    return archive


@dataclass(frozen=True)
class _Job:
    """What all parts of one archive have in common."""

    driver: Sandboxes
    sandbox_id: str
    folder: Path
    reserve: Reserve
    deadline_s: float
    stall_s: float
    told: Told

    def hermes(self, words: Sequence[str], cap_bytes: int) -> list[Part]:
        """Stream Hermes's own backup; without one the archive is as whole, since everything is in the files' part."""
        try:
            zipped, _report = self.part(
                HERMES, lambda nonce: inside.program("hermes", nonce, FOLDERS[0], *words), Report, cap_bytes
            )  # fmt: skip
        except SandboxFailed as error:
            self.told(f"going on without Hermes's own backup: {error.cause or error.what}")
            return []
        return [zipped]

    def part(
        self, name: str, argv: Callable[[str], Sequence[str]], form: type[_Report], cap_bytes: int
    ) -> tuple[Part, _Report]:
        """Stream one part into its file, which gets its name once the inside has said the same of it as we saw."""
        nonce = secrets.token_hex(8)
        with durable.fresh(self.folder / name) as file:
            sink = _Sink(file, name, self.reserve, self.told)
            done = self.driver.stream(
                self.sandbox_id, argv(nonce), deadline_s=self.deadline_s, stall_s=self.stall_s,
                cap_bytes=cap_bytes, sink=cast("BinaryIO", sink),
            )  # fmt: skip
            report = inside.report(self.driver, self.sandbox_id, nonce, form, status=done.status)
            _compare(self.sandbox_id, name, sink.came(), report.stream)
        return Part(name=name, bytes=done.bytes, sha256=done.sha256), report


def _compare(sandbox_id: str, name: str, came: Sent, sent: Sent) -> None:
    if not came.bytes:
        raise SandboxFailed(f"{sandbox_id} sent an empty {name}")
    if came != sent:
        raise SandboxFailed(
            f"the {name} that arrived is not the one that {sandbox_id} says it sent",
            cause=f"{came.bytes} bytes came, {sent.bytes} were sent",
            hint=f"Its own programs may have meddled: `troupe restart {agent_of(sandbox_id)}` ends them. "
            "Nothing was changed.",
        )


def _tell(report: FilesReport, told: Told) -> None:
    for found, what in (
        (report.left_out, "left out, which no archive can hold"),
        (report.raw, "databases kept as they lie, which SQLite would not copy"),
    ):
        if found.count:
            told(f"{found.count} {what}: {', '.join(line(name, 100) for name in found.first[:3])}")
