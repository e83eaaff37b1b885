"""Archives out of and into real sandboxes, through the protocol alone: every driver gets them for nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests import everything
from tests.contract.conftest import House
from tests.contract.test_sandbox import state
from troupe_tasks.archives import disk, inside
from troupe_tasks.archives.model import FOLDERS, Archive
from troupe_tasks.archives.put import put
from troupe_tasks.archives.take import take
from troupe_tasks.errors import SandboxFailed
from troupe_tasks.sandbox.protocol import Isolation, Sizes, State

SIZES = Sizes(cpus=1, memory_mib=512, storage_mib=512, processes=64, open_files=256)
CODE = Path(everything.__file__).read_text(encoding="utf-8")
HERMES = ("/opt/hermes/bin/hermes", "backup", "-o", "{file}")
MIB = 1 << 20
Fresh = Callable[[], str]


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


def test_everything_comes_back_in_another_sandbox(house: House, fresh: Fresh, tmp_path: Path) -> None:
    old, new = house.started(fresh(), sizes=SIZES), house.started(fresh(), sizes=SIZES)
    work(house, old, "make")
    before = told(house, old)
    assert ("user.plain" in str(before)) is (house.driver.isolation() is Isolation.NAMESPACES)
    measured = inside.measure(house.driver, old)
    archive = taken(house, old, tmp_path / "backup")
    assert archive.parts[0].bytes < measured.archive_bytes
    assert archive.parts[0].bytes < 6 * MIB
    assert archive.manifest.left_out.first == ("workspace/socket (a socket)",)
    assert told(house, old) == before
    house.driver.remove(old)

    work(house, new, "make")
    assert put(house.driver, new, tmp_path / "backup", archive, deadline_s=120).same(archive.manifest)
    assert told(house, new) == before
    house.driver.stop(new, deadline_s=10)
    house.driver.start(new)
    after = told(house, new)
    if house.driver.isolation() is Isolation.GVISOR:  # which has its pipes in memory alone
        after["workspace/pipe"] = before["workspace/pipe"]
    assert after == before
    assert house.driver.disk_used_mib(new) < 64  # its holes are holes again

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


def test_a_sandbox_that_dies_meanwhile_leaves_nothing(house: House, fresh: Fresh, tmp_path: Path) -> None:
    one = house.started(fresh(), sizes=SIZES)
    run(house, one, "sh", "-c", "head -c 50000000 /dev/urandom > /state/large; sync")
    with pytest.raises(SandboxFailed):
        taken(house, one, tmp_path / "backup", during=lambda: kill(house, one))
    assert list((tmp_path / "backup").iterdir()) == []
    revive(house, one)
    archive = taken(house, one, tmp_path / "backup")
    other = house.started(fresh(), sizes=SIZES)

    class Deadly:
        """A source that kills the sandbox which reads it."""

        def stream(self, *words: object, source: object, **options: object) -> object:
            outer_read, left = source.read, [20]  # type: ignore[attr-defined]

            def read(size: int) -> bytes:
                left[0] -= 1
                if not left[0]:
                    kill(house, other)
                data: bytes = outer_read(size)
                return data

            source.read = read  # type: ignore[attr-defined]
            return house.driver.stream(*words, source=source, **options)  # type: ignore[arg-type]

    with pytest.raises(SandboxFailed):
        put(Deadly(), other, tmp_path / "backup", archive, deadline_s=60)  # type: ignore[arg-type]
    revive(house, other)
    assert put(house.driver, other, tmp_path / "backup", archive, deadline_s=60).same(archive.manifest)


@pytest.mark.parametrize("meddling", ["kill -9", "kill -STOP", "change"])
def test_an_agent_that_meddles_gets_no_archive(
    house: House, fresh: Fresh, tmp_path: Path, meddling: str
) -> None:
    one = house.started(fresh(), sizes=SIZES)
    run(house, one, "sh", "-c", "head -c 50000000 /dev/urandom > /state/large; echo a > /state/early")
    find = "for p in /proc/[0-9]*; do grep -q guest/archive[.]py $p/cmdline && {} ${{p#/proc/}}; done; true"
    script = "echo b > /state/early" if meddling == "change" else find.format(meddling)

    with pytest.raises(SandboxFailed):
        taken(house, one, tmp_path / "backup", during=lambda: run(house, one, "sh", "-c", script), stall_s=3)
    assert list((tmp_path / "backup").iterdir()) == []
    assert b"guest/archive.py" not in run(house, one, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


def test_hermes_backs_itself_up_beside_the_files(house: House, fresh: Fresh, tmp_path: Path) -> None:
    one = fresh()
    env = {"HERMES_HOME": "/state/hermes", "HOME": "/state/home", "PYTHONDONTWRITEBYTECODE": "1"}
    sizes = SIZES.model_copy(update={"memory_mib": 1024, "processes": 256, "open_files": 1024})
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
