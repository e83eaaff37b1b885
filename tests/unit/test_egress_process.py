"""The broker and the rehearsal model as processes: one of each, asked and ended as the supervisor does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from troupe_tasks.egress import policy as policies
from troupe_tasks.egress.control import Broker as Control
from troupe_tasks.egress.policy import EgressPolicy
from troupe_tasks.errors import EgressFailed
from troupe_tasks.host import sockets
from troupe_tasks.paths import Paths
from troupe_tasks.services import launch


@pytest.fixture
def broker() -> Iterator[subprocess.Popen[bytes]]:
    policies.save(Paths.from_env(), EgressPolicy(id="jane", rehearsal=True))
    argv = [sys.executable, "-m", "troupe_tasks.egress.broker"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()
        process.communicate()


def test_it_answers_refuses_a_second_one_and_leaves_no_socket(broker: subprocess.Popen[bytes]) -> None:
    paths = Paths.from_env()
    pong = Control(paths).wait_until_ready(deadline_s=20)
    assert (pong.pid, pong.agents) == (broker.pid, {"jane": 0})
    second = subprocess.run(
        [sys.executable, "-m", "troupe_tasks.egress.broker"], stderr=subprocess.PIPE, timeout=20, check=False
    )
    assert second.returncode == 3
    assert b"Traceback" not in second.stderr
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(10) == 0
    assert not list(paths.run.glob("*.sock"))
    assert not list((paths.egress("jane") / "socket").iterdir())


def test_after_a_kill_the_next_one_takes_over_the_dead_sockets(broker: subprocess.Popen[bytes]) -> None:
    paths = Paths.from_env()
    Control(paths).wait_until_ready(deadline_s=20)
    broker.kill()
    broker.wait(10)
    with pytest.raises(EgressFailed):
        Control(paths).ping()
    with subprocess.Popen([sys.executable, "-m", "troupe_tasks.egress.broker"]) as again:
        assert Control(paths).wait_until_ready(deadline_s=20).pid == again.pid
        again.terminate()
        assert again.wait(10) == 0


def test_the_control_socket_knows_four_questions_only(broker: subprocess.Popen[bytes]) -> None:
    paths = Paths.from_env()
    Control(paths).wait_until_ready(deadline_s=20)
    for line in (b'{"ask": "keys"}', b'{"ask": "forget"}', b'{"ask": "ping", "agent": "jane"}', b"[]"):
        assert sockets.ask(paths.run / "broker.sock", line, deadline_s=5).startswith(b'{"error": ')
    assert Control(paths).reload().attached == ()


def test_without_a_broker_the_error_says_so() -> None:
    with pytest.raises(EgressFailed, match="does not answer"):
        Control(Paths.from_env()).ping()


def test_its_memory_is_nobody_elses(broker: subprocess.Popen[bytes]) -> None:
    Control(Paths.from_env()).wait_until_ready(deadline_s=20)
    limits = Path(f"/proc/{broker.pid}/limits").read_text()
    assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE)
    if os.geteuid() != 0:  # root looks anywhere
        with pytest.raises(PermissionError):
            os.listdir(f"/proc/{broker.pid}/fd")


def test_an_orphan_that_shows_no_open_files_is_found_by_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "broker.lock"
    lock.touch()
    program = (
        "import fcntl, sys\nfile = open(sys.argv[1])\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\nsys.stdin.read()"
    )
    argv = [sys.executable, "-c", program, str(lock)]
    monkeypatch.setattr(launch, "_has_open", lambda *_: False)
    assert launch.holders(lock) == []
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert launch.holders(lock) == [holder.pid]
        holder.communicate(b"\n")
    assert launch.holders(lock) == []
