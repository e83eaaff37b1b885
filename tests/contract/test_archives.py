"""Archives out of and into real sandboxes, through the protocol alone: every driver gets them for nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import everything
from tests.contract.asking import state
from tests.contract.conftest import House
from troupe_tasks.archives import disk, inside
from troupe_tasks.archives.model import FOLDERS, Archive
from troupe_tasks.archives.put import keep, put
from troupe_tasks.archives.take import take
from troupe_tasks.errors import SandboxFailed
from troupe_tasks.sandbox.protocol import Isolation, State

CODE = Path(everything.__file__).read_text(encoding="utf-8")
HERMES = ("/opt/hermes/bin/hermes", "backup", "-o", "{file}")
MIB = 1 << 20
MANY = 1200  # more than gVisor keeps in mind
_FILL = f"""\
import os
os.mkdir("/workspace/many")
for number in range({MANY}):
    with open(f"/workspace/many/{{number}}", "w") as file:
        file.write(f"{{number}}\\n" * 100)
with open("/workspace/vast", "wb") as file:
    file.truncate(200 << 20)
    file.seek(100 << 20)
    file.write(b"x" * 5000)
"""
Fresh = Callable[[], str]
pytestmark = pytest.mark.own_sbx


def run(house: House, one: str, *argv: str, stdin: bytes = b"") -> bytes:
    done = house.driver.run(one, argv, stdin=stdin, deadline_s=120, cap_bytes=8 * MIB)
    assert done.status == 0, done.stderr
    return done.stdout


def work(house: House, one: str, name: str) -> bytes:
    # Not python -c: the text is longer than some would pass as an argument.
    return run(house, one, "/usr/bin/python3", "-I", "-", name, *FOLDERS, stdin=CODE.encode())


def told(house: House, one: str) -> dict[str, list[object]]:
    found: dict[str, list[object]] = json.loads(work(house, one, "tell"))
    return found


def taken(
    house: House, one: str, folder: Path, *, during: Callable[[], object] = lambda: None, stall_s: float = 60
) -> Archive:
    def reserve() -> int:
        during()
        return 1 << 40

    return take(
        house.driver, one, folder, cap_bytes=1 << 30, reserve=reserve, deadline_s=120, told=lambda _line: None,
        stall_s=stall_s,
    )  # fmt: skip


def after_a_power_cut(house: House, one: str, target: Path) -> dict[str, bytes]:
    """Return the many files as they are on the disk of a running sandbox if its machine loses its power now."""
    disk_now, copy = house.paths.sandbox(one) / "disk.ext4", target / "disk.ext4"
    for words in (
        ["cp", "--sparse=always", str(disk_now), str(copy)],
        ["e2fsck", "-p", str(copy)],  # replays the journal, as the next mount does
        ["debugfs", "-R", f"rdump /workspace/many {target}", str(copy)],
    ):
        subprocess.run(words, check=True, timeout=60, capture_output=True)
    copy.unlink()
    return {entry.name: entry.read_bytes() for entry in (target / "many").iterdir()}


def test_everything_comes_back_in_another_sandbox(house: House, fresh: Fresh, tmp_path: Path) -> None:
    old, new = house.started(fresh(), sizes=house.roomy), house.started(fresh(), sizes=house.roomy)
    work(house, old, "make")
    run(house, old, "/usr/bin/python3", "-I", "-S", "-c", _FILL)
    before = told(house, old)
    if house.kernel is not Isolation.KVM:  # there it is the disk's file system that has them, or not
        assert ("user.plain" in str(before)) is (house.kernel is Isolation.NAMESPACES)
    measured = inside.measure(house.driver, old)
    archive = taken(house, old, tmp_path / "backup")
    assert archive.parts[0].bytes < measured.archive_bytes
    assert archive.parts[0].bytes < 12 * MIB  # of 280
    assert archive.manifest.left_out.first == ("workspace/socket (a socket)",)
    assert told(house, old) == before
    house.driver.remove(old)

    empty_mib = house.driver.disk_used_mib(new)
    assert put(house.driver, new, tmp_path / "backup", archive, deadline_s=120, reserve=lambda: 1 << 40).same(
        archive.manifest
    )
    keep(house.driver, new, deadline_s=120)
    if (house.paths.sandbox(new) / "disk.ext4").exists():
        (tmp_path / "cut").mkdir()
        there = after_a_power_cut(house, new, tmp_path / "cut")
        assert there == {str(number): f"{number}\n".encode() * 100 for number in range(MANY)}
    house.driver.stop(new, deadline_s=10)
    house.driver.start(new)
    after = told(house, new)
    if house.kernel is Isolation.GVISOR:  # which has its pipes in memory alone
        after["workspace/pipe"] = before["workspace/pipe"]
    assert after == before
    assert house.driver.disk_used_mib(new) - empty_mib < 64  # its holes are holes again

    target = tmp_path / "by-hand"
    target.mkdir()
    words = [
        "tar",
        "-x",
        "-f",
        str(tmp_path / "backup/files.tar"),
        "-C",
        str(target),
        "--no-same-owner",
        "-p",
    ]
    words += ["--exclude=workspace/deep/*", "--xattrs", "--xattrs-include=user.*"]
    subprocess.run(words, check=True, timeout=60)
    here = Path.cwd()
    try:
        hand = json.loads(everything.tell(os.fsencode(target / "state"), os.fsencode(target / "workspace")))
    finally:
        os.chdir(here)
    assert hand == {path: seen for path, seen in before.items() if not path.startswith("workspace/deep/")}


def kill(house: House, one: str) -> None:
    for pid in house.driver.pids(one):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def revive(house: House, one: str) -> None:
    deadline = time.monotonic() + 20
    while state(house, one) is State.RUNNING and time.monotonic() < deadline:
        time.sleep(0.05)
    house.driver.start(one)


@pytest.fixture(scope="module")
def large(house: House) -> Iterator[str]:
    """Yield a running sandbox with a large file, which is itself again after each test."""
    house.only("capsule", why="a sandbox whose processes can be killed from here is wanted")
    one = house.started("large", sizes=house.roomy)
    run(house, one, "sh", "-c", "head -c 50000000 /dev/urandom > /state/large; echo a > /state/early; sync")
    yield one
    house.driver.remove(one)


def test_a_sandbox_that_dies_meanwhile_leaves_nothing(house: House, large: str, tmp_path: Path) -> None:
    with pytest.raises(SandboxFailed):
        taken(house, large, tmp_path / "backup", during=lambda: kill(house, large))
    assert list((tmp_path / "backup").iterdir()) == []
    revive(house, large)
    archive = taken(house, large, tmp_path / "backup")

    class Deadly:
        """A source that kills the sandbox which reads it."""

        def stream(self, *words: object, source: object, **options: object) -> object:
            outer_read, left = source.read, [20]  # type: ignore[attr-defined]

            def read(size: int) -> bytes:
                left[0] -= 1
                if not left[0]:
                    kill(house, large)
                data: bytes = outer_read(size)
                return data

            source.read = read  # type: ignore[attr-defined]
            return house.driver.stream(*words, source=source, **options)  # type: ignore[arg-type]

    with pytest.raises(SandboxFailed):
        put(Deadly(), large, tmp_path / "backup", archive, deadline_s=60, reserve=lambda: 1 << 40)  # type: ignore[arg-type]
    revive(house, large)
    assert put(
        house.driver, large, tmp_path / "backup", archive, deadline_s=60, reserve=lambda: 1 << 40
    ).same(archive.manifest)


@pytest.mark.parametrize("meddling", ["kill -9", "kill -STOP", "change"])
def test_an_agent_that_meddles_gets_no_archive(
    house: House, large: str, tmp_path: Path, meddling: str
) -> None:
    find = "for p in /proc/[0-9]*; do grep -q guest/archive[.]py $p/cmdline && {} ${{p#/proc/}}; done; true"
    script = "echo b > /state/early" if meddling == "change" else find.format(meddling)

    with pytest.raises(SandboxFailed):
        taken(
            house, large, tmp_path / "backup", during=lambda: run(house, large, "sh", "-c", script), stall_s=2
        )
    assert list((tmp_path / "backup").iterdir()) == []
    assert b"guest/archive.py" not in run(house, large, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


def test_hermes_backs_itself_up_beside_the_files(house: House, fresh: Fresh, tmp_path: Path) -> None:
    house.only("capsule", why="it is a stream like any other, and Hermes is slow to start")
    one = fresh()
    env = {"HERMES_HOME": "/state/hermes", "HOME": "/state/home", "PYTHONDONTWRITEBYTECODE": "1"}
    sizes = house.roomy.model_copy(update={"memory_mib": 1024, "processes": 256, "open_files": 1024})
    house.driver.create(house.spec(one, sizes=sizes).model_copy(update={"env": env}))
    house.driver.start(one)
    run(house, one, "sh", "-c", "mkdir -p $HOME $HERMES_HOME && echo soul > $HERMES_HOME/SOUL.md")
    archive = take(
        house.driver, one, tmp_path / "backup", cap_bytes=1 << 30, reserve=lambda: 1 << 40, deadline_s=120,
        told=lambda _line: None, hermes=HERMES,
    )  # fmt: skip
    assert [part.name for part in archive.parts] == ["files.tar", "hermes.zip"]
    disk.rehash(tmp_path / "backup", archive)
    assert disk.load(tmp_path / "backup") == archive
    listed = subprocess.run(
        ["tar", "-t", "-f", str(tmp_path / "backup/files.tar")], capture_output=True, check=True, timeout=60
    )
    assert b"state/hermes/SOUL.md\n" in listed.stdout
    assert b"scratch" not in listed.stdout
