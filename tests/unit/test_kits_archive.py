"""A kit's archive: one form when packed, and nothing but that form when unpacked."""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troupe_tasks.errors import Refused, UsageError
from troupe_tasks.kits import archive

FILES = {
    "kit.toml": b"name",
    "SOUL.md": b"",
    "managed/live/config.yaml": b"a: 1\n",
    "seeds/.keep": b"x" * 700,
}


def tree(folder: Path, names: list[str]) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(FILES[name])
    return folder


def tar(*entries: tuple[str, bytes], change: Callable[[tarfile.TarInfo], None] = lambda _info: None) -> bytes:
    """Return an archive of some files; change is done to the header of the last one."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if (name, data) == entries[-1]:
                change(info)
            out.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def as_(**fields: Any) -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        for name, value in fields.items():
            setattr(info, name, value)

    return change


def patched(data: bytes, at: int, new: bytes) -> bytes:
    """Return an archive with some bytes of its first header replaced, and its checksum mended."""
    head = bytearray(data[:512])
    head[at : at + len(new)] = new
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + data[512:]


def test_the_same_kit_gives_the_same_bytes(tmp_path: Path) -> None:
    first = tree(tmp_path / "one", list(FILES))
    before = os.umask(0o077)
    try:
        second = tree(tmp_path / "two", list(reversed(FILES)))
    finally:
        os.umask(before)
    for number, name in enumerate(FILES):
        os.utime(second / name, (number, number))
        (second / name).chmod(0o700)
    if os.geteuid() == 0:
        os.chown(second / "kit.toml", 12, 34)
    assert archive.pack(first) == archive.pack(second)


def test_what_was_packed_is_unpacked_with_one_mode_whatever_the_umask(tmp_path: Path) -> None:
    packed = archive.pack(tree(tmp_path / "kit", list(FILES)))
    before = os.umask(0o077)
    try:
        archive.unpack(packed, tmp_path / "out")
    finally:
        os.umask(before)
    found = {path.relative_to(tmp_path / "out").as_posix(): path for path in (tmp_path / "out").rglob("*")}
    assert {name: path.read_bytes() for name, path in found.items() if path.is_file()} == FILES
    assert {path.stat().st_mode & 0o7777 for path in found.values() if path.is_file()} == {0o644}
    assert {
        path.stat().st_mode & 0o7777 for path in [tmp_path / "out", *found.values()] if path.is_dir()
    } == {0o755}


def test_modes_of_an_archive_mean_nothing(tmp_path: Path) -> None:
    archive.unpack(tar(("run", b"#!"), change=as_(mode=0o6777)), tmp_path / "out")
    assert (tmp_path / "out/run").stat().st_mode & 0o7777 == 0o644


@pytest.mark.parametrize("odd", ["link", "fifo", "socket-name\n", "é", "sp ace ", "..."])
def test_what_no_kit_may_hold_is_not_packed(tmp_path: Path, odd: str) -> None:
    folder = tree(tmp_path / "kit", list(FILES))
    place = folder / "managed" / odd
    if odd == "link":
        place.symlink_to("/etc/passwd")
    elif odd == "fifo":
        os.mkfifo(place)
    else:
        place.write_bytes(b"")
    with pytest.raises(UsageError, match="can't be packed"):
        archive.pack(folder)


def test_a_kit_that_is_too_large_is_not_packed(tmp_path: Path) -> None:
    folder = tree(tmp_path / "kit", list(FILES))
    with (folder / "big").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError) as told:
        archive.pack(folder)
    assert "larger than" in told.value.cause


def gnu(*names: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as out:
        for name in names:
            out.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


def pax() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as out:
        info = tarfile.TarInfo("a")
        info.pax_headers = {"path": "../../outside"}
        out.addfile(info)
    return buffer.getvalue()


HOSTILE = {
    "symbolic link": (tar(("a", b""), change=as_(type=tarfile.SYMTYPE, linkname="/etc/passwd")), "type"),
    "hard link": (tar(("b", b"x"), ("a", b""), change=as_(type=tarfile.LNKTYPE, linkname="b")), "type"),
    "character device": (tar(("a", b""), change=as_(type=tarfile.CHRTYPE, devmajor=1, devminor=3)), "type"),
    "block device": (tar(("a", b""), change=as_(type=tarfile.BLKTYPE)), "type"),
    "fifo": (tar(("a", b""), change=as_(type=tarfile.FIFOTYPE)), "type"),
    "contiguous file": (tar(("a", b""), change=as_(type=tarfile.CONTTYPE)), "type"),
    "GNU sparse file": (patched(tar(("a", b"")), 156, b"S"), "type"),
    "old plain file": (patched(tar(("a", b"")), 156, b"\0"), "type"),
    "pax header that renames": (pax(), "type"),
    "GNU archive": (gnu("a"), "ustar"),
    "GNU long name": (gnu("a" * 200), "ustar"),
    "absolute path": (tar(("/etc/passwd", b"")), "plain path"),
    "absolute path by two slashes": (tar(("//etc/passwd", b"")), "plain path"),
    "path above": (tar(("../a", b"")), "plain path"),
    "path above inside": (tar(("a/../../b", b"")), "plain path"),
    "path of itself": (tar(("./a", b"")), "plain path"),
    "empty name": (tar(("", b"")), "plain path"),
    "empty part": (tar(("a//b", b"")), "plain path"),
    "backslash": (tar(("a\\..\\b", b"")), "plain path"),
    "control character": (tar(("a\x1b[2J", b"")), "plain path"),
    "name that ends in a dot": (tar(("a.", b"")), "plain path"),
    "name that ends in a blank": (tar(("a ", b"")), "plain path"),
    "letter of two spellings": (tar(("e\u0301", b"")), "ASCII"),
    "letter that folds to an ASCII one": (tar(("\u212ait.toml", b"")), "ASCII"),
    "case of a file": (tar(("kit.toml", b""), ("KIT.toml", b"")), "case"),
    "case of a folder": (tar(("managed/a", b""), ("Managed/b", b"")), "case"),
    "file twice": (tar(("a", b"1"), ("b", b""), ("a", b"2")), "twice"),
    "file as a folder": (tar(("a", b"1"), ("a/b", b"")), "twice"),
    "folder as a file": (tar(("a/b", b""), ("a", b"")), "twice"),
    "folder with content": (patched(tar(("a", b"x")), 156, b"5"), "content"),
    "too deep": (tar(("/".join("abcdefghi"), b"")), "deeper"),
    "path too long": (tar((f"{'a' * 98}/{'b' * 60}", b"")), "longer"),
    "too many entries": (tar(*((f"f{n}", b"") for n in range(2001))), "more than 2000"),
    "too many bytes": (tar(("a", bytes(17 << 20))), "larger"),
    "size beyond the end": (patched(tar(("a", b"x")), 124, b"77777777777\0"), "size"),
    "size below zero": (patched(tar(("a", b"x")), 124, b"\xff" * 12), "size"),
    "size below zero in digits": (patched(tar(("a", b"x")), 124, b"-0000001000\0"), "size"),
    "damaged header": (b"a" + tar(("b", b""))[1:], "damaged"),
    "no end": (tar(("a", b"x"))[:1024], "cut off"),
    "cut in a header": (tar(("a", b"x"))[:100], "cut off"),
    "nothing at all": (b"", "cut off"),
    "something after the end": (tar(("a", b"x")) + tar(("b", b"x")), "follows"),
    "compressed": (gzip.compress(tar(("a", b"x"))), "ustar|cut off"),
    "bomb": (gzip.compress(bytes(64 << 20)), "ustar"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_and_nothing_of_it_is_written(tmp_path: Path, kind: str) -> None:
    data, why = HOSTILE[kind]
    with pytest.raises(Refused) as told:
        archive.unpack(data, tmp_path / "out")
    assert re.search(why, told.value.cause), told.value.cause
    assert "\x1b" not in str(told.value)
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]


GOOD = tar(("kit.toml", b"name"), ("managed/a", b"x" * 600))


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=8), st.integers(0, 3))
def test_whatever_bytes_come_they_are_refused_or_lie_within_the_kit(
    changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    try:
        found = archive.entries(bytes(data[: len(data) - cut * 512]))
    except ValueError:
        return
    for entry in found:
        assert archive.checked_path(entry.path) == entry.path
        assert len(entry.data or b"") <= len(GOOD)
    assert len({entry.path.lower() for entry in found}) == len(found)
