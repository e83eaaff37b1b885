"""What goes into an archive comes out of it: over trees with everything in them, by plain processes."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import everything
from tests.plain import ROOT, Plain
from troupe_tasks.archives import disk, inside
from troupe_tasks.archives.model import Archive
from troupe_tasks.archives.put import put
from troupe_tasks.archives.take import take

ID = "plain"


def make(plain: Plain) -> None:
    words = [
        sys.executable,
        everything.__file__,
        "make",
        str(plain.root / "state"),
        str(plain.root / "workspace"),
    ]
    subprocess.run(words, check=True, timeout=60)


def told(plain: Plain) -> dict[str, list[object]]:
    here = Path.cwd()
    try:
        told = everything.tell(os.fsencode(plain.root / "state"), os.fsencode(plain.root / "workspace"))
    finally:
        os.chdir(here)
    found: dict[str, list[object]] = json.loads(told)
    return found


def taken(plain: Plain, folder: Path) -> Archive:
    return take(
        plain.driver(), ID, folder, cap_bytes=1 << 30, reserve=lambda: 1 << 40, deadline_s=60, told=print
    )


def same_but_deep(plain: Plain) -> dict[str, list[object]]:
    return {path: seen for path, seen in told(plain).items() if path not in {"workspace", "workspace/deep"}}


@pytest.fixture
def full(tmp_path: Path) -> Plain:
    """Return a driver whose folders hold everything."""
    plain = Plain(tmp_path / "old")
    make(plain)
    return plain


def test_everything_comes_back_as_it_was(full: Plain, tmp_path: Path) -> None:
    before = told(full)
    archive = taken(full, tmp_path / "backup")
    assert told(full) == before
    assert not (full.root / "state/.troupe-scratch").exists()
    assert archive.manifest.left_out.first == ("workspace/socket (a socket)",)
    assert [name.partition(" ")[0] for name in archive.raw.first] == ["state/hermes/broken.db"]
    assert disk.load(tmp_path / "backup") == archive
    disk.rehash(tmp_path / "backup", archive)

    fresh = Plain(tmp_path / "new")
    make(fresh)  # what was there before is not mixed with it
    assert put(fresh.driver(), ID, tmp_path / "backup", archive, deadline_s=60, reserve=lambda: 1 << 40).same(
        archive.manifest
    )
    assert told(fresh) == before
    assert not (fresh.root / "state/hermes/state.db-wal").exists()
    assert inside.survey(fresh.driver(), ID, deadline_s=60).digest == archive.manifest.digest


def test_holes_are_neither_sent_nor_filled(full: Plain, tmp_path: Path) -> None:
    archive = taken(full, tmp_path / "backup")
    assert archive.parts[0].bytes < 6 << 20  # of 80 MiB
    fresh = Plain(tmp_path / "new")
    put(fresh.driver(), ID, tmp_path / "backup", archive, deadline_s=60, reserve=lambda: 1 << 40)
    for name in ("sparse", "small-sparse", "only-a-hole", "page-holes", "zeros"):
        old, new = (plain.root / "workspace" / name for plain in (full, fresh))
        assert new.stat().st_blocks <= old.stat().st_blocks + 16, (
            name
        )  # the map of many holes takes blocks too


def test_a_file_comes_out_of_it_by_hand(full: Plain, tmp_path: Path) -> None:
    taken(full, tmp_path / "backup")
    target = tmp_path / "hand"
    target.mkdir()
    words = ["tar", "--extract", "--file", str(tmp_path / "backup/files.tar"), "--directory", str(target)]
    words += ["--exclude=workspace/deep/*", "--xattrs", "--xattrs-include=user.*", "--no-same-owner", "-p"]
    subprocess.run(words, check=True, timeout=60)  # tar itself can't make paths as long as those
    hand = Plain.__new__(Plain)
    hand.root = target
    shutil.rmtree(full.root / "workspace/deep")
    assert same_but_deep(hand) == same_but_deep(full)
    with tarfile.open(tmp_path / "backup/files.tar") as tar:
        member = tar.extractfile("workspace/sparse")
        assert member is not None
        assert member.read() == (full.root / "workspace/sparse").read_bytes()


def test_another_tree_has_another_digest(full: Plain, tmp_path: Path) -> None:
    def digest() -> str:
        return inside.survey(full.driver(), ID, deadline_s=60).digest

    seen = [digest()]
    big, link = full.root / "workspace/big", full.root / "workspace/dangling"
    kept = big.stat()
    with big.open("r+b") as file:
        file.seek(2 << 20)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(big, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    seen.append(digest())
    os.utime(big, ns=(kept.st_atime_ns, kept.st_mtime_ns + 1))
    seen.append(digest())
    big.chmod(0o645)
    seen.append(digest())
    link.unlink()
    seen.append(digest())
    (full.root / "state/empty").touch()
    seen.append(digest())
    assert len(set(seen)) == len(seen)


def test_holes_do_not_change_a_digest(tmp_path: Path) -> None:
    digests = []
    for name in ("holes", "zeros"):
        plain = Plain(tmp_path / name)
        path = plain.root / "state/file"
        with path.open("wb") as file:
            if name == "holes":
                file.truncate(5 << 20)
            else:
                file.write(bytes(5 << 20))
            file.seek(3 << 20)
            file.write(b"x" * 4096)
        for target in (path, plain.root / "state", plain.root / "workspace"):
            os.utime(target, (1, 1))
        digests.append(inside.survey(plain.driver(), ID, deadline_s=60).digest)
    assert digests[0] == digests[1]


def test_what_is_measured_is_enough_for_the_archive(full: Plain, tmp_path: Path) -> None:
    measured = inside.measure(full.driver(), ID)
    archive = taken(full, tmp_path / "backup")
    assert archive.parts[0].bytes <= measured.archive_bytes < 16 << 20
    assert measured.entries > archive.manifest.files


names = st.binary(min_size=1, max_size=255).filter(lambda n: not set(n) & {0, 47} and n not in {b".", b".."})
contents = st.lists(
    st.one_of(st.binary(max_size=200), st.integers(0, 40).map(lambda n: bytes(4096 * n)),
              st.integers(1, 3).map(lambda n: bytes(range(256)) * 16 * n)),
    max_size=6,
).map(b"".join)  # fmt: skip
times = st.integers(-(2**31), 2**33).map(lambda s: s * 10**9) | st.integers(0, 2**61)
files = st.tuples(st.just("file"), contents, st.integers(0, 0o7777), times)
links = st.tuples(
    st.just("link"), st.binary(min_size=1, max_size=400).filter(lambda t: 0 not in t), st.just(0), times
)
pipes = st.tuples(st.just("pipe"), st.just(b""), st.integers(0, 0o7777), times)
trees = st.recursive(
    st.dictionaries(names, files | links | pipes, max_size=5), lambda inner: st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def grow(folder: bytes, tree: object) -> None:
    assert isinstance(tree, dict)
    for name, node in tree.items():
        path = os.path.join(folder, name)
        if isinstance(node, dict):
            os.mkdir(path)
            grow(path, node)
            continue
        kind, content, mode, time_ns = node
        if kind == "link":
            os.symlink(content, path)
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            Path(os.fsdecode(path)).write_bytes(content)
        if kind != "link":
            os.chmod(path, mode)
        os.utime(path, ns=(0, time_ns), follow_symlinks=False)


@settings(max_examples=6)
@given(tree=trees)
def test_any_tree_comes_back(tmp_path_factory: pytest.TempPathFactory, tree: object) -> None:
    place = tmp_path_factory.mktemp("tree")
    old, new = Plain(place / "old"), Plain(place / "new")
    grow(os.fsencode(old.root / "workspace"), tree)
    before = told(old)
    archive = taken(old, place / "backup")
    put(new.driver(), ID, place / "backup", archive, deadline_s=60, reserve=lambda: 1 << 40)
    assert told(new) == before


def restore(plain: Plain, data: bytes) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, "-I", "-S", str(ROOT / "guest/restore.py"), str(plain.root / "state")]
    return subprocess.run(words, input=data, capture_output=True, check=False, timeout=60)


def tar(*members: tuple[str, bytes, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, link, 0o755
            info.size = 5 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"hello") if info.size else None)
    return buffer.getvalue()


TOP = ("state", tarfile.DIRTYPE, "")


@pytest.mark.parametrize(
    "members",
    [
        [TOP, ("state/../out", tarfile.REGTYPE, "")],
        [TOP, ("/out", tarfile.REGTYPE, "")],
        [TOP, ("out", tarfile.REGTYPE, "")],
        [TOP, ("state/link", tarfile.SYMTYPE, ".."), ("state/link/out", tarfile.REGTYPE, "")],
        [TOP, ("state/link", tarfile.SYMTYPE, ".."), ("state/link", tarfile.DIRTYPE, "")],
        [TOP, ("state/link", tarfile.SYMTYPE, "../out"), ("state/link", tarfile.REGTYPE, "")],
        [TOP, ("state/out", tarfile.LNKTYPE, "state/../secret")],
        [TOP, ("state/link", tarfile.SYMTYPE, ".."), ("state/out", tarfile.LNKTYPE, "state/link/secret")],
        [TOP, ("state/device", tarfile.CHRTYPE, "")],
        [("state/a/b", tarfile.REGTYPE, "")],
    ],
)
def test_nothing_gets_out_of_the_folders(tmp_path: Path, members: list[tuple[str, bytes, str]]) -> None:
    plain = Plain(tmp_path / "one")
    (plain.root / "secret").write_text("kept")
    done = restore(plain, tar(*members))
    assert done.returncode == 1
    assert sorted(entry.name for entry in plain.root.iterdir()) == [
        "guest",
        "secret",
        "state",
        "tmp",
        "workspace",
    ]
    assert (plain.root / "secret").stat().st_nlink == 1


def test_an_archive_that_is_cut_or_bent_is_refused(full: Plain, tmp_path: Path) -> None:
    archive = taken(full, tmp_path / "backup")
    data = (tmp_path / "backup/files.tar").read_bytes()
    plain = Plain(tmp_path / "one")
    for bad in (b"", data[:100], data[:-1], data[:-1024], data[: len(data) // 2], data + b"x", b"x" * 4096):
        assert restore(plain, bad).returncode == 1
    fresh = Plain(tmp_path / "new")
    assert put(fresh.driver(), ID, tmp_path / "backup", archive, deadline_s=60, reserve=lambda: 1 << 40).same(
        archive.manifest
    )


def test_what_was_there_is_gone_and_links_out_of_it_lead_nowhere(full: Plain, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (full.root / "state/way-out").symlink_to(outside)
    done = restore(full, tar(TOP))
    assert (done.returncode, done.stdout) == (0, b"")
    assert list((full.root / "state").iterdir()) == []
    assert stat.S_IMODE((full.root / "state").stat().st_mode) == 0o755
    assert (outside / "kept").read_text() == "kept"
