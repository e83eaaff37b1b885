"""Durable files: the old one or the new one, whole, and nobody else's."""

from __future__ import annotations

import errno
import os
import resource
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troupe_tasks import durable
from troupe_tasks.errors import DiskFull, FolderUnusable, StateUnreadable, TroupeError
from troupe_tasks.paths import Paths

OLD, NEW = b"old" * 1000, b"new" * 1000
FAILING = ("open", "write", "fsync", "fchmod", "replace")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Give a folder with nothing in it."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@contextmanager
def umask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


class Failing:
    """Lets N-1 calls of a system function through and fails the Nth."""

    def __init__(self, real: Callable[..., Any], nth: int, code: int) -> None:
        self.real, self.left, self.code, self.hit = real, nth, code, False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.hit = True
            raise OSError(self.code, os.strerror(self.code))
        return self.real(*args, **kwargs)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("function", FAILING)
def test_the_nth_failing_call_leaves_a_whole_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    expected = DiskFull if code in (errno.ENOSPC, errno.EDQUOT) else FolderUnusable
    for nth in range(1, 20):
        path = here / "file"
        durable.write(path, OLD)
        failing = Failing(getattr(os, function), nth, code)
        with monkeypatch.context() as patch:
            patch.setattr(os, function, failing)
            try:
                durable.write(path, NEW)
            except TroupeError as error:
                assert type(error) is expected  # noqa: PT017 - the loop ends where nothing is raised any more
        assert path.read_bytes() in (OLD, NEW)
        assert [entry.name for entry in here.iterdir()] == ["file"]
        if not failing.hit:
            assert nth > 1
            assert path.read_bytes() == NEW
            return
    pytest.fail("the calls never ended")


def test_short_writes_are_finished(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, data: real(handle, data[:7]))
        durable.write(here / "file", NEW)
    assert (here / "file").read_bytes() == NEW


@pytest.mark.parametrize("bits", [0, 0o022, 0o777])
def test_modes_do_not_depend_on_the_umask(here: Path, bits: int) -> None:
    with umask(bits):
        folder = durable.make_private_dir(here / "a" / "b")
        durable.write(folder / "file", NEW)
        durable.write(folder / "program", NEW, mode=0o500)
    assert [mode(here / "a"), mode(folder)] == [0o700, 0o700]
    assert mode(folder / "file") == 0o600
    assert mode(folder / "program") == 0o500


def test_a_file_is_private_before_it_has_content(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = os.write

    def watching(handle: int, data: bytes) -> int:
        seen.append(stat.S_IMODE(os.fstat(handle).st_mode))
        return real(handle, data)

    with umask(0), monkeypatch.context() as patch:
        patch.setattr(os, "write", watching)
        durable.write(here / "file", NEW)
    assert seen == [0o600]


def test_a_folder_that_others_can_enter_is_closed(here: Path) -> None:
    (here / "open").mkdir()
    (here / "open").chmod(0o755)
    durable.make_private_dir(here / "open")
    assert mode(here / "open") == 0o700


def test_links_and_files_are_no_folders(here: Path) -> None:
    (here / "real").mkdir()
    (here / "link").symlink_to(here / "real")
    (here / "dangling").symlink_to(here / "nothing")
    (here / "file").write_bytes(OLD)
    for name in ("link", "dangling", "file"):
        with pytest.raises(FolderUnusable):
            durable.make_private_dir(here / name)
    with pytest.raises(FolderUnusable):
        durable.make_private_dir(here / "dangling" / "below")
    assert not (here / "nothing").exists()


@pytest.mark.parametrize("number", range(5))
def test_from_its_own_folders_downwards_troupe_follows_no_link(
    own_home: Path, here: Path, number: int
) -> None:
    """The folders above may be links: a home, or the base of an XDG variable, on another disk."""
    root = Paths.from_env().roots[number]
    assert root.is_relative_to(own_home)
    root.parent.parent.mkdir(parents=True, exist_ok=True)
    root.parent.symlink_to(here)
    place = root / "one" / "two" / "three"
    durable.make_private_dir(place)
    assert durable.find_link(place) is None
    assert (here / root.name / "one" / "two" / "three").is_dir()
    for folder in (root, root / "one", root / "one" / "two", place):
        folder.rename(here / "moved")
        folder.symlink_to(here / "moved")
        with pytest.raises(FolderUnusable, match="is a link"):
            durable.make_private_dir(place)
        with pytest.raises(FolderUnusable):
            durable.make_private_dir(place / "below")
        assert durable.find_link(place) == folder
        assert not (place / "below").exists()
        folder.unlink()
        (here / "moved").rename(folder)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_belongs_to_another_user_is_refused(here: Path) -> None:
    folder, file = here / "folder", here / "file"
    folder.mkdir()
    file.write_bytes(OLD)
    os.chown(folder, 65534, 65534)
    os.chown(file, 65534, 65534)
    with pytest.raises(FolderUnusable, match="another user"):
        durable.make_private_dir(folder)
    with pytest.raises(StateUnreadable, match="not a plain file of yours"):
        durable.read_private(file)


def test_only_plain_files_within_the_cap_are_read(here: Path) -> None:
    file = here / "file"
    durable.write(file, OLD)
    (here / "link").symlink_to(file)
    (here / "folder").mkdir()
    os.mkfifo(here / "fifo")
    assert durable.read_private(file, len(OLD)) == OLD
    with pytest.raises(StateUnreadable, match="larger than"):
        durable.read_private(file, len(OLD) - 1)
    for name in ("link", "folder", "fifo"):
        with pytest.raises(StateUnreadable):
            durable.read_private(here / name)
    with pytest.raises(FileNotFoundError):
        durable.read_private(here / "none")


def test_a_file_of_another_mode_is_refused_where_one_is_asked_for(here: Path) -> None:
    durable.write(here / "file", NEW, mode=0o400)
    assert durable.read_private(here / "file", mode=0o400) == NEW
    with pytest.raises(StateUnreadable, match="it is 0400, not 0600"):
        durable.read_private(here / "file", mode=0o600)


def test_a_new_file_takes_its_place_once_it_is_proved(here: Path) -> None:
    durable.write(here / "file", OLD)
    seen: list[bytes] = []

    def refuse(new: Path) -> None:
        seen.append(new.read_bytes())
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        durable.write(here / "file", NEW, prove=refuse)
    assert seen == [NEW]
    assert (here / "file").read_bytes() == OLD
    assert [entry.name for entry in here.iterdir()] == ["file"]


def test_overwriting_clears_a_file_where_it_is_and_follows_no_link(here: Path) -> None:
    durable.write(here / "file", OLD, mode=0o400)
    with open(here / "file", "rb") as still_open:
        durable.overwrite(here / "file")
        assert still_open.read() == bytes(len(OLD))
    durable.write(here / "target", OLD)
    (here / "link").symlink_to(here / "target")
    os.mkfifo(here / "fifo")
    for name in ("link", "fifo", "none"):
        with pytest.raises((StateUnreadable, FolderUnusable)):
            durable.overwrite(here / name)
    assert (here / "target").read_bytes() == OLD


def test_a_temporary_file_of_a_cut_write_is_no_obstacle(here: Path) -> None:
    (here / f".file.{os.getpid()}.new").symlink_to(here / "victim")
    durable.write(here / "file", NEW)
    assert not (here / "victim").exists()
    assert [entry.name for entry in here.iterdir()] == ["file"]


def test_a_link_is_replaced_and_never_written_through(here: Path) -> None:
    (here / "target").write_bytes(OLD)
    (here / "link").symlink_to(here / "target")
    durable.write(here / "link", NEW)
    assert (here / "target").read_bytes() == OLD
    assert not (here / "link").is_symlink()


def test_removal_follows_no_link(here: Path) -> None:
    outside = here / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(OLD)
    tree = here / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "link").symlink_to(outside)
    durable.remove_tree(tree)
    (here / "top").symlink_to(outside)
    durable.remove_tree(here / "top")
    durable.remove_tree(here / "nothing")
    assert (outside / "kept").read_bytes() == OLD
    assert [entry.name for entry in here.iterdir()] == ["outside"]


def nested(top: Path, levels: int) -> None:
    """Make folders one in another, deeper than a path can name; in the innermost lies a file."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)


def test_a_tree_of_thousands_of_levels_is_removed_with_few_open_files(here: Path) -> None:
    nested(here / "tree", 3000)
    (here / "tree" / "d" / "beside").mkdir()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(int(n) for n in os.listdir("/proc/self/fd")) + 8, before[1])
    )
    try:
        durable.remove_tree(here / "tree")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert list(here.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == opened


MODES = st.sampled_from([0o000, 0o100, 0o400, 0o500, 0o555, 0o600, 0o700])
TREES = st.recursive(
    st.sampled_from(["file", "link", "pipe"]),
    lambda inner: st.tuples(MODES, st.lists(inner, max_size=4)),
    max_leaves=12,
)


def plant(place: Path, tree: Any, outside: Path) -> None:
    match tree:
        case "file":
            place.write_bytes(OLD)
            place.chmod(0)
        case "link":
            place.symlink_to(outside)
        case "pipe":
            os.mkfifo(place)
        case (bits, inner):
            place.mkdir()
            for number, one in enumerate(inner):
                plant(place / str(number), one, outside)
            place.chmod(bits)


def as_ordinary_user(work: Callable[[], None]) -> str:
    """Do it in a child that is not root, and return what it raised."""
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            work()
        except BaseException as error:  # noqa: BLE001 - nothing of the test runs on in the child
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    return "" if os.waitpid(pid, 0)[1] == 0 else "the child failed"


@settings(max_examples=60)
@given(tree=st.tuples(MODES, st.lists(TREES, max_size=4)))
def test_whatever_its_modes_a_tree_of_ours_is_removed_by_an_ordinary_user(tree: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="troupe-remove-") as name:
        place, outside = Path(name), Path(name, "outside")
        place.chmod(0o777)

        def work() -> None:
            outside.mkdir(0o555)
            plant(place / "tree", tree, outside)
            durable.remove_tree(place / "tree")

        assert as_ordinary_user(work) == ""
        assert list(place.iterdir()) == [outside]
        assert mode(outside) == 0o555


@pytest.mark.parametrize("to_a_link", [True, False])
def test_a_folder_that_is_swapped_while_it_is_removed_leads_nowhere(
    here: Path, monkeypatch: pytest.MonkeyPatch, to_a_link: bool
) -> None:
    outside = here / "outside"
    (outside / "d").mkdir(parents=True)
    (outside / "kept").write_bytes(OLD)
    nested(here / "tree", 3)
    real = os.open

    def swapping(path: Any, flags: int, *rest: Any, **how: Any) -> int:
        inside = how.get("dir_fd") and os.readlink(f"/proc/self/fd/{how['dir_fd']}") == str(here / "tree/d")
        if to_a_link and path == "d" and inside:
            (here / "tree/d/d").rename(here / "aside")
            (here / "tree/d/d").symlink_to(outside)
        if not to_a_link and path == ".." and (here / "tree/d/d").exists():
            (here / "tree/d/d").rename(outside / "d/d")
        return real(path, flags, *rest, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", swapping)
        if to_a_link:
            durable.remove_tree(here / "tree")
        else:
            with pytest.raises(FolderUnusable, match="was moved while it was removed"):
                durable.remove_tree(here / "tree")
    assert (outside / "kept").read_bytes() == OLD
    assert (outside / "d").is_dir()
    durable.remove_tree(here / "tree")
    assert not (here / "tree").exists()


def test_a_tree_with_links_and_pipes_is_synced(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "deep").mkdir()
    (here / "deep" / "file").write_bytes(OLD)
    (here / "deep" / "link").symlink_to("/nonexistent")
    os.mkfifo(here / "deep" / "fifo")
    synced: list[str] = []
    real = os.fsync

    def watching(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        real(handle)

    monkeypatch.setattr(os, "fsync", watching)
    durable.sync_tree(here)
    assert sorted(synced) == ["deep", "file", "here"]


def test_a_large_file_has_its_name_only_once_it_is_whole(here: Path) -> None:
    with durable.fresh(here / "file") as file:
        file.write(OLD)
        (waiting,) = here.iterdir()
        assert waiting.name != "file"
        assert stat.S_IMODE(waiting.stat().st_mode) == 0o600
        file.write(NEW)
    assert (here / "file").read_bytes() == OLD + NEW
    assert [entry.name for entry in here.iterdir()] == ["file"]


def test_a_large_file_that_is_given_up_leaves_nothing_and_a_killed_one_is_replaced(here: Path) -> None:
    def attempt() -> None:
        with durable.fresh(here / "file") as file:
            file.write(OLD)
            raise KeyboardInterrupt

    (here / "victim").write_bytes(OLD)
    (here / ".file.new").symlink_to(here / "victim")
    with pytest.raises(KeyboardInterrupt):
        attempt()
    assert (here / "victim").read_bytes() == OLD
    assert [entry.name for entry in here.iterdir()] == ["victim"]
