"""`troupe logs`, the real command, on logs that grow, are moved away and are emptied while it follows them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from troupe_tasks.paths import Paths
from troupe_tasks.services import rotate

ROOT = Path(__file__).resolve().parents[2]
ARGV = (sys.executable, "-m", "troupe_tasks", "logs", "broker")


@pytest.fixture
def log() -> Path:
    folder = Paths.from_env().logs("broker")
    folder.mkdir(parents=True, mode=0o700)
    return folder / "broker.log"


class Follower:
    """A `troupe logs --follow` whose output goes to a file, so that nothing waits for it."""

    def __init__(self, out: Path) -> None:
        self._out = out
        with out.open("wb") as file:
            self.process = subprocess.Popen([*ARGV, "--follow"], cwd=ROOT, stdout=file, stderr=file)

    def said(self) -> str:
        return self._out.read_text(encoding="utf-8")

    def wait_for(self, said: str) -> None:
        until(lambda: self.said() == said, lambda: f"{self.said()!r} is not {said!r}")


@pytest.fixture
def followed(tmp_path: Path, log: Path) -> Iterator[Follower]:
    one = Follower(tmp_path / "out")
    yield one
    one.process.kill()
    one.process.wait()


def until(holds: Callable[[], bool], otherwise: Callable[[], str], deadline_s: float = 20) -> None:
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.02)


def add(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def shown() -> str:
    done = subprocess.run(ARGV, cwd=ROOT, capture_output=True, timeout=60, check=True)
    return done.stdout.decode("utf-8")


def test_a_log_that_is_not_there_yet_is_empty(log: Path) -> None:
    assert shown() == ""


def test_with_json_it_is_one_document_of_escaped_lines_and_has_an_end(log: Path) -> None:
    add(log, b"one \x1b[2J\ntwo \xff\n")
    done = subprocess.run([*ARGV, "--json"], cwd=ROOT, capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout) == {"agent": "broker", "lines": ["one \\x1b[2J", "two \\xff"]}
    refused = subprocess.run(
        [*ARGV, "--json", "--follow"], cwd=ROOT, capture_output=True, timeout=60, check=False
    )
    assert refused.returncode == 2
    assert json.loads(refused.stderr)["error"] == "UsageError"


def test_the_end_of_a_long_log_begins_with_a_whole_line_and_is_escaped(log: Path) -> None:
    rows = [f"{number:05} é \x1b[2J \\x1b\n" for number in range(10_000)]
    add(log, "".join(rows).encode())
    told = shown().splitlines()
    assert told == [f"{number:05} é \\x1b[2J \\x1b" for number in range(10_000 - len(told), 10_000)]
    assert (60 << 10) < sum(len(row) for row in told) < (70 << 10)


def test_it_is_followed_through_every_way_of_rotation(log: Path, followed: Follower) -> None:
    add(log, b"first\n")  # it was not there when it was first looked for
    followed.wait_for("first\n")
    add(log, b"caf\xc3")
    add(log, b"\xa9\n")
    followed.wait_for("first\ncafé\n")
    # supervisord's way: moved away, and another one made; the last words before that count, too.
    add(log, b"last\n")
    log.rename(log.with_name("broker.log.1"))
    add(log, b"new\n")
    followed.wait_for("first\ncafé\nlast\nnew\n")
    # The timer's way: copied, and emptied.
    assert rotate.rotate(log, limit_bytes=1)
    add(log, b"1\n")
    followed.wait_for("first\ncafé\nlast\nnew\n1\n")


def test_ctrl_c_ends_it_with_its_status_and_not_a_word(log: Path, followed: Follower) -> None:
    add(log, b"up\n")
    followed.wait_for("up\n")
    os.kill(followed.process.pid, signal.SIGINT)
    assert followed.process.wait(timeout=20) == 130
    assert followed.said() == "up\n"
