"""Whatever goes wrong with an archive: a clear error, nothing of it left, and nothing else touched."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.plain import Plain
from troupe_tasks.archives import disk, inside
from troupe_tasks.archives.model import Archive, Part
from troupe_tasks.archives.put import put
from troupe_tasks.archives.take import take
from troupe_tasks.errors import (
    AlreadyExists,
    BackupDamaged,
    DiskFull,
    FolderUnusable,
    SandboxFailed,
    SandboxTimeout,
    TroupeError,
)

ID = "plain"
ROOT = os.geteuid() == 0
# What a meddled program says of itself, as if all were well.
NONE: dict[str, object] = {"count": 0, "first": []}
REPORT = {
    "digest": "0" * 64, "files": 1, "folders": 1, "links": 0, "pipes": 0, "bytes": 1, "left_out": NONE, "changed": NONE,
    "raw": NONE, "stream": {"bytes": 5, "sample": hashlib.sha256(b"hello").hexdigest()},
}  # fmt: skip


def told_nothing(_line: str) -> None:
    return


def plenty() -> int:
    return 1 << 40


def taken(plain: Plain, folder: Path, *, reserve: Callable[[], int] = plenty, stall_s: float = 30) -> Archive:
    return take(
        plain.driver(), ID, folder, cap_bytes=32 << 20, reserve=reserve, deadline_s=60, told=told_nothing,
        stall_s=stall_s,
    )  # fmt: skip


@pytest.fixture
def plain(tmp_path: Path) -> Plain:
    """Return a driver whose state is 4 MiB that do not compress to holes, and a few small files."""
    made = Plain(tmp_path / "agent")
    (made.root / "state/large").write_bytes(os.urandom(4 << 20))
    for number in range(20):
        (made.root / f"workspace/{number}").write_text(str(number))
    return made


def left(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def digest(plain: Plain) -> str:
    return inside.survey(plain.driver(), ID, deadline_s=60).digest


def test_what_is_kept_is_the_owners_alone(plain: Plain, tmp_path: Path) -> None:
    modes: list[int] = []

    def look() -> int:
        modes.extend(stat.S_IMODE(entry.stat().st_mode) for entry in (tmp_path / "backup").iterdir())
        return 1 << 40

    os.umask(0)
    taken(plain, tmp_path / "backup", reserve=look)
    modes += [stat.S_IMODE(entry.stat().st_mode) for entry in (tmp_path / "backup").iterdir()]
    assert set(modes) == {0o600}
    assert len(modes) > 2
    assert stat.S_IMODE((tmp_path / "backup").stat().st_mode) == 0o700


# --- a sandbox that is broken, or not what it says


def meddled(body: str) -> str:
    """Return a guest program that does something else than to archive, and says that all went well."""
    return textwrap.dedent(f"""\
        import json, os, signal, sys, time
        REPORT = {json.dumps(REPORT)!r}
        if sys.argv[1] == "told":
            print(REPORT)
            sys.exit(0)
        """) + textwrap.dedent(body)


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ("while True: os.write(1, bytes(1 << 20))", SandboxFailed, "cap"),
        ("", SandboxFailed, "empty"),
        ("os.write(1, b'hello!')", SandboxFailed, "6 bytes came, 5 were sent"),
        ("os.write(1, b'hullo')", SandboxFailed, "not the one"),
        ("os.write(1, b'hello'); sys.exit(3)", SandboxFailed, "does not read"),
        ("os.write(1, b'hell'); os.kill(os.getpid(), 9)", SandboxFailed, "does not read"),
        ("os.write(1, b'hello'); time.sleep(600)", SandboxTimeout, "stood still"),
        ("os.close(1); time.sleep(600)", SandboxTimeout, "stood still"),
    ],
    ids=["endless", "empty", "longer", "other", "status", "killed", "stalled", "closed"],
)
def test_a_stream_that_is_not_what_it_should_be(
    plain: Plain, tmp_path: Path, body: str, kind: type[TroupeError], says: str
) -> None:
    (plain.guest / "archive.py").write_text(meddled(body))
    with pytest.raises(kind, match=says):
        taken(plain, tmp_path / "backup", stall_s=0.5 if kind is SandboxTimeout else 30)
    assert left(tmp_path / "backup") == []


@pytest.mark.parametrize(
    "report",
    [
        "", "{}", "[]", "nonsense", '{"error": 1}', "x" * 100_000,
        json.dumps({**REPORT, "files": -1}),
        json.dumps({**REPORT, "digest": "0" * 63}),
        json.dumps({**REPORT, "more": 1}),
        json.dumps({**REPORT, "left_out": {"count": 1, "first": ["x" * 400]}}),
        json.dumps({**REPORT, "left_out": {"count": 99, "first": ["x"] * 99}}),
        json.dumps({**REPORT, "stream": {"bytes": 1 << 70, "sample": "0" * 64}}),
    ],
)  # fmt: skip
def test_a_report_that_is_not_in_its_form(plain: Plain, tmp_path: Path, report: str) -> None:
    program = f"import os, sys\nprint({report!r}) if sys.argv[1] == 'told' else os.write(1, b'hello')"
    (plain.guest / "archive.py").write_text(program)
    with pytest.raises(SandboxFailed) as caught:
        taken(plain, tmp_path / "backup")
    assert len(str(caught.value)) < 1000
    assert left(tmp_path / "backup") == []


def test_what_the_inside_says_of_a_failure_is_shown_escaped(plain: Plain, tmp_path: Path) -> None:
    program = (
        "import sys\nprint('{\"error\": \"\\\\u001b[31mred\"}') if sys.argv[1] == 'told' else sys.exit(1)"
    )
    (plain.guest / "archive.py").write_text(program)
    with pytest.raises(SandboxFailed, match=r"\\x1b\[31mred"):
        taken(plain, tmp_path / "backup")


def test_slow_is_not_stalled_while_something_says_that_it_works(plain: Plain) -> None:
    words = [
        "/usr/bin/python3",
        "-c",
        "import os, time\nfor _ in range(5): time.sleep(0.25); os.write(2, b'.')",
    ]
    assert plain.stream(ID, words, deadline_s=60, cap_bytes=10, stall_s=1).status == 0


@pytest.mark.parametrize(
    "what", ["grows", "is rewritten", "has another mode", "is new", "is gone", "is replaced"]
)
def test_a_tree_that_changes_meanwhile_is_told(plain: Plain, tmp_path: Path, what: str) -> None:
    large, early, late = (plain.root / name for name in ("state/large", "state/a", "workspace/5"))
    large.write_bytes(os.urandom(16 << 20))  # more than is on its way at any moment
    early.write_text("early")

    def change() -> int:
        if not (tmp_path / "done").exists():
            (tmp_path / "done").touch()
            if what == "grows":
                with large.open("ab") as file:
                    file.write(b"x")
            elif what == "is rewritten":
                kept = early.stat()
                early.write_text("later")
                os.utime(early, ns=(kept.st_atime_ns, kept.st_mtime_ns))
            elif what == "has another mode":
                early.chmod(0o600)
            elif what == "is new":
                (plain.root / "state/b").touch()
            elif what == "is gone":
                early.unlink()
            else:
                late.rename(early)
        return 1 << 40

    with pytest.raises(SandboxFailed, match="changed while they were read"):
        taken(plain, tmp_path / "backup", reserve=change)
    assert left(tmp_path / "backup") == []


def test_hermes_own_backup_is_believed_only_when_it_says_complete_and_reads(
    plain: Plain, tmp_path: Path
) -> None:
    program = textwrap.dedent("""\
        import sqlite3, sys, time, zipfile
        how, path = sys.argv[1:]
        held = sqlite3.connect(path + ".db"); held.execute("CREATE TABLE t (n)"); held.commit(); held.close()
        data = open(path + ".db", "rb").read()
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("SOUL.md", "soul" * 100)  # stored, so that it is the sum that tells
            file.writestr("state.db", data if how != "broken-db" else data[:20] + b"x" * 4076)
        if how == "bent":
            with open(path, "r+b") as file: file.seek(50); file.write(b"x")
        if how == "no-zip": open(path, "wb").write(b"nothing")
        if how == "slow": time.sleep(4)
        print("Backup incomplete" if how == "incomplete" else "Backup complete: all")
        sys.exit(how == "status")
        """)
    (plain.root / "backup.py").write_text(program)

    told: list[str] = []

    def attempt(how: str) -> Archive:
        return take(
            plain.driver(), ID, tmp_path / "backup", cap_bytes=32 << 20, reserve=plenty, deadline_s=60,
            told=told.append, hermes=("/usr/bin/python3", str(plain.root / "backup.py"), how, "{file}"), stall_s=3,
        )  # fmt: skip

    for how, says in (
        ("incomplete", "Backup incomplete"), ("status", "status 1"), ("bent", "SOUL.md.*damaged"),
        ("broken-db", "state.db"), ("no-zip", "read as a zip"),
    ):  # fmt: skip
        told.clear()
        # Everything is in the other part as well: who spoils Hermes's own does not keep an agent from moving.
        assert [part.name for part in attempt(how).parts] == ["files.tar"]
        assert re.search(says, told[0])
        assert left(tmp_path / "backup") == ["archive.json", "files.tar"]
        assert left(plain.root / "state") == ["large"]
        disk.discard(tmp_path / "backup")
    assert [part.name for part in attempt("slow").parts] == ["files.tar", "hermes.zip"]
    disk.discard(tmp_path / "backup")
    archive = attempt("well")
    assert [part.name for part in archive.parts] == ["files.tar", "hermes.zip"]
    assert left(tmp_path / "backup") == ["archive.json", "files.tar", "hermes.zip"]
    disk.rehash(tmp_path / "backup", archive)


# --- a disk that is full or broken


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_nothing_is_written_into_the_reserve(plain: Plain, tmp_path: Path, share: float) -> None:
    folder = tmp_path / "backup"
    most = int(taken(plain, tmp_path / "first").parts[0].bytes * share)
    written: list[int] = []

    def reserve() -> int:
        written.append(sum(entry.stat().st_size for entry in folder.iterdir()))
        return most - written[-1]

    with pytest.raises(DiskFull, match="reserve"):
        taken(plain, folder, reserve=reserve)
    assert max(written) <= most
    assert left(folder) == []


@contextmanager
def small_disk(folder: Path, size_bytes: int, *, files: int = 1000) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    options = f"size={size_bytes},nr_inodes={files},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(not ROOT, reason="only root can mount a small disk")
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_disk_that_fills_up_is_told_and_left_empty(plain: Plain, tmp_path: Path, share: float) -> None:
    before = digest(plain)
    with small_disk(tmp_path / "disk", int((4 << 20) * share)) as folder:
        with pytest.raises(DiskFull, match="no room left"):
            taken(plain, folder / "backup")
        assert left(folder / "backup") == []
    assert digest(plain) == before


def in_two_files(path: Path) -> None:
    """Leave a database as a killed program does: what it wrote last is beside it."""
    path.parent.mkdir()
    live = path.with_name("live")
    held = sqlite3.connect(live)
    held.execute("PRAGMA journal_mode=WAL")
    held.execute("CREATE TABLE t (n INTEGER)")
    held.execute("INSERT INTO t VALUES (42)")
    held.commit()
    for side in ("", "-wal", "-shm"):
        shutil.copy(f"{live}{side}", f"{path}{side}")
    held.close()
    live.unlink()


@pytest.mark.skipif(not ROOT, reason="only root can mount a small disk")
@pytest.mark.parametrize("files", [10, 1000], ids=["files", "bytes"])
def test_a_full_disk_inside_keeps_no_database_out(tmp_path: Path, files: int) -> None:
    plain, fresh = Plain(tmp_path / "old"), Plain(tmp_path / "new")
    with small_disk(plain.root / "state", 1 << 20, files=files) as state:
        in_two_files(state / "hermes/state.db")
        with suppress(OSError), (state / "filler").open("wb", buffering=0) as filler:
            for number in range(1 << 20):
                filler.write(bytes(4096)) if files > 100 else (state / str(number)).touch()
        before = digest(plain)
        archive = taken(plain, tmp_path / "backup")
        assert digest(plain) == before
        assert not (state / ".troupe-scratch").exists()
    assert [name.partition(" ")[0] for name in archive.raw.first] == ["state/hermes/state.db"]
    put(fresh.driver(), ID, tmp_path / "backup", archive, deadline_s=60, reserve=plenty)
    held = sqlite3.connect(fresh.root / "state/hermes/state.db")
    assert held.execute("SELECT n FROM t").fetchall() == [(42,)]
    held.close()


class Broken:
    """The Nth call on the backup's folder fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, number: int, code: int) -> None:
        self.folder, self.number, self.code, self.seen = folder, number, code, 0
        write, fsync, replace = os.write, os.fsync, Path.replace

        def on(handle: int) -> bool:
            return Path(f"/proc/self/fd/{handle}").readlink().is_relative_to(folder)

        def broken_write(handle: int, data: bytes) -> int:
            if on(handle):
                self.count()
            return write(handle, data)

        def broken_fsync(handle: int) -> None:
            if on(handle):
                self.count()
            fsync(handle)

        def broken_replace(path: Path, target: Path) -> Path:
            self.count()
            return replace(path, target)

        monkeypatch.setattr(os, "write", broken_write)
        monkeypatch.setattr(os, "fsync", broken_fsync)
        monkeypatch.setattr(Path, "replace", broken_replace)

    def count(self) -> None:
        self.seen += 1
        if self.seen == self.number:
            raise OSError(self.code, os.strerror(self.code))


def test_the_nth_write_sync_or_rename_fails(plain: Plain, tmp_path: Path) -> None:
    before, folder = digest(plain), tmp_path / "backup"
    for number in range(1, 40):
        code, kind = ((errno.EIO, FolderUnusable), (errno.ENOSPC, DiskFull))[number % 2]
        with pytest.MonkeyPatch.context() as patch:
            broken = Broken(patch, folder, number, code)
            try:
                archive = taken(plain, folder)
            except kind:
                assert left(folder) == []
                continue
        break
    else:
        pytest.fail("it never came to an end")
    assert 8 < broken.seen < number  # how many writes there are is how many pieces came
    disk.rehash(folder, archive)
    assert archive.manifest.digest == digest(plain) == before


# --- what is kept


@pytest.fixture
def kept(plain: Plain, tmp_path: Path) -> tuple[Path, Archive]:
    """Return an archive of it, in its folder."""
    return tmp_path / "backup", taken(plain, tmp_path / "backup")


def bend(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(2 << 20)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "damage",
    [bend, lambda path: os.truncate(path, 1000), lambda path: path.unlink(), replace_by_link,
     lambda path: path.write_bytes(path.read_bytes() + b"x")],
    ids=["bent", "cut", "gone", "a link", "longer"],
)  # fmt: skip
def test_damage_is_found_before_anything_rests_on_it(
    kept: tuple[Path, Archive], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder, archive = kept
    disk.rehash(folder, archive)
    damage(folder / "files.tar")
    with pytest.raises(BackupDamaged):
        disk.rehash(folder, archive)
    with pytest.raises(BackupDamaged):
        put(Plain(tmp_path / "new").driver(), ID, folder, archive, deadline_s=60, reserve=lambda: 1 << 40)


def test_an_archive_is_never_overwritten_and_only_whole_when_it_says_so(
    plain: Plain, kept: tuple[Path, Archive]
) -> None:
    folder, archive = kept
    (folder / "mine.txt").write_text("kept")
    with pytest.raises(AlreadyExists):
        taken(plain, folder)
    assert disk.load(folder) == archive
    (folder / "archive.json").unlink()
    with pytest.raises(BackupDamaged, match="no whole backup"):
        disk.load(folder)
    assert taken(plain, folder).manifest == archive.manifest
    (folder / "archive.json").write_text("{}")
    with pytest.raises(BackupDamaged, match="does not read"):
        disk.load(folder)
    disk.discard(folder)
    assert left(folder) == ["mine.txt"]


class Torn:
    """A driver whose transfers in end after some bytes, as when the machine dies."""

    def __init__(self, plain: Plain, after: int) -> None:
        self.plain, self.after = plain, after

    def stream(self, *words: object, source: BinaryIO, **options: object) -> object:
        outer = self

        class Cut:
            def read(self, size: int) -> bytes:
                outer.after -= 1
                if outer.after < 0:
                    raise KeyboardInterrupt
                return source.read(size)

        return self.plain.stream(*words, source=Cut(), **options)  # type: ignore[arg-type]

    def driver(self) -> object:
        return self


def test_filling_can_be_cut_anywhere_and_begun_again(kept: tuple[Path, Archive], tmp_path: Path) -> None:
    folder, archive = kept
    fresh = Plain(tmp_path / "new")
    for after in range(5):
        with pytest.raises(KeyboardInterrupt):
            put(Torn(fresh, after), ID, folder, archive, deadline_s=60, reserve=lambda: 1 << 40)  # type: ignore[arg-type]
    assert put(fresh.driver(), ID, folder, archive, deadline_s=60, reserve=lambda: 1 << 40).same(
        archive.manifest
    )


def test_a_sandbox_that_then_holds_something_else_is_told(kept: tuple[Path, Archive], tmp_path: Path) -> None:
    folder, archive = kept
    fresh = Plain(tmp_path / "new")
    program = fresh.guest / "restore.py"
    program.write_text(program.read_text().replace("fchmod(handle, member.mode)", "fchmod(handle, 0o640)"))
    with pytest.raises(SandboxFailed, match="does not hold what was archived"):
        put(fresh.driver(), ID, folder, archive, deadline_s=60, reserve=lambda: 1 << 40)


def test_parts_have_plain_names() -> None:
    for name in ("../x.tar", "a/b.tar", ".tar", "files.tar\n"):
        with pytest.raises(ValueError, match="name"):
            Part(name=name, bytes=1, sha256="0" * 64)
