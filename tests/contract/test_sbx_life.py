"""How the sbx driver starts a sandbox and keeps it up: the daemon's unit, the way out, what is inside."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.conftest import ONE, Docker
from tests.contract.docked import asks, docker_has, named, word
from tests.contract.standin_sbx import sbx as standin
from troupe_tasks import durable
from troupe_tasks.errors import DaemonFailed, SandboxFailed, SandboxGone
from troupe_tasks.sandbox.protocol import State
from troupe_tasks.sandbox.sbx import calls, driver, inside, making, restart, saved, way_out


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the daemon's unit file, which is there."""
    file = tmp_path / "sbx-daemon.service"
    file.touch()
    monkeypatch.setattr(restart, "UNIT_FILE", file)
    monkeypatch.setattr(calls._Seen, "until_s", 0.0)
    monkeypatch.setattr(calls, "_AGAIN_S", 0.05)
    return file


def starts(dock: Docker) -> list[str]:
    """Return the commands that started a daemon so far."""
    place = dock.standin / "daemon-starts"
    return place.read_text(encoding="utf-8").splitlines() if place.exists() else []


def test_where_the_daemon_has_a_unit_nothing_starts_one_outside_it(
    dock: Docker, unit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dock.driver.start(ONE)
    monkeypatch.setattr(driver, "_DAEMON_S", 0.2)
    before = starts(dock)
    calls._Seen.until_s = 0.0
    more: list[Callable[[], object]] = [
        dock.driver.list,
        lambda: dock.driver.run(ONE, ["true"], deadline_s=30),
    ]
    with dock.ill(daemon="stopped"):
        for ask in [*asks(dock), *more]:
            with pytest.raises(DaemonFailed, match="the sandbox daemon does not run") as told:
                ask()
            assert "systemctl restart sbx-daemon.service" in told.value.hint
        calls.check()
        assert making._approval() == "--force"
        assert starts(dock) == before
        unit.unlink()
        dock.driver.list()
        assert starts(dock) == [*before, "ls"]
    assert word(dock) == b"kept\n"


def test_a_start_waits_for_the_daemon_of_a_unit(dock: Docker, unit: Path) -> None:
    before, first = starts(dock), len(dock.calls())
    with dock.ill(daemon="stopped"):

        def come_up() -> None:
            while dock.calls()[first:].count(["daemon", "status", "--json"]) < 3:
                time.sleep(0.02)
            standin.Place(dock.standin).put("misbehave", {})

        daemon = threading.Thread(target=come_up)
        daemon.start()
        dock.driver.start(ONE)
        daemon.join(30)
    assert starts(dock) == before


def test_a_daemon_that_was_seen_running_is_not_asked_for_each_call(dock: Docker, unit: Path) -> None:
    first = len(dock.calls())
    for _ in range(3):
        dock.driver.list()
    said = [words[0] for words in dock.calls()[first:]]
    assert said[:2] == ["daemon", "ls"]
    assert said.count("daemon") < 3


_INSIDE = """\
import os, signal, sys
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{name}/cmdline", "rb").read().split(b"\\0")
    except OSError:
        continue
    if words[3:4] == [b"/run/troupe/guest/tunnel.py"]:
        print(name)
        if sys.argv[1:]:
            os.kill(int(name), signal.SIGKILL)
"""


def way_outs(dock: Docker, *end: str) -> bytes:
    """Return the ends inside of the way out, after ending them if that is asked for."""
    words = ["exec", "-u", "root", named(dock), *inside.PYTHON, "-c", _INSIDE, *end]
    return calls.do(words, deadline_s=30).stdout


def test_a_way_out_whose_end_inside_is_killed_comes_back_by_itself(dock: Docker) -> None:
    dock.driver.start(ONE)
    for _ in range(3):
        before, until = way_outs(dock, "end"), time.monotonic() + 60
        assert before
        while way_outs(dock) in {b"", before}:
            assert time.monotonic() < until
            time.sleep(0.1)
    assert word(dock) == b"kept\n"


def test_without_its_way_out_one_counts_as_stopped_and_a_start_mends_it(dock: Docker) -> None:
    dock.driver.start(ONE)
    way_out.stop(dock.paths, ONE)
    assert next(one for one in making.listing() if one.name == named(dock)).status == "running"
    assert standing(dock) is State.STOPPED
    dock.driver.start(ONE)
    assert standing(dock) is State.RUNNING
    assert way_outs(dock)


def test_the_way_out_alone_keeps_one_from_being_stopped_for_idleness(dock: Docker) -> None:
    dock.driver.start(ONE)
    place = standin.Place(dock.standin)
    place.idle()
    assert standing(dock) is State.RUNNING
    assert word(dock) == b"kept\n"
    way_out.stop(dock.paths, ONE)
    until = time.monotonic() + 30
    while next(one for one in making.listing() if one.name == named(dock)).status == "running":
        assert time.monotonic() < until
        place.idle()
    assert word(dock) == b"kept\n"


def standing(dock: Docker) -> State:
    info = dock.driver.list().find(ONE)
    assert info is not None
    return info.state


@pytest.mark.chaos
def test_what_is_in_tmp_stays_for_a_start_of_one_that_runs_and_goes_with_the_machines(dock: Docker) -> None:
    dock.driver.start(ONE)
    script = (
        "cd /tmp && mkdir -p deep/er && echo x | tee a .b deep/er/c && ln -s /state link && chmod 500 deep/er"
    )
    assert dock.driver.run(ONE, ["sh", "-c", script], deadline_s=30).status == 0
    calls.do(["exec", "-u", "root", named(dock), "touch", "/tmp/docker-s-own"], deadline_s=30)
    way_out.stop(dock.paths, ONE)
    dock.driver.start(ONE)
    shown = dock.driver.run(ONE, ["ls", "-A", "/tmp"], deadline_s=30).stdout.split()
    assert {b"a", b".b", b"deep", b"link", b"docker-s-own"} <= set(shown)
    dock.driver.stop(ONE, deadline_s=1)
    dock.driver.start(ONE)
    assert dock.driver.run(ONE, ["ls", "-A", "/tmp"], deadline_s=30).stdout == b"docker-s-own\n"
    assert dock.driver.run(ONE, ["touch", "/tmp/again"], deadline_s=30).status == 0
    assert word(dock) == b"kept\n"
    calls.do(["exec", "-u", "root", named(dock), "rm", "/tmp/docker-s-own"], deadline_s=30)


def test_words_longer_than_linux_takes_in_one_argument_come_whole(dock: Docker) -> None:
    dock.driver.start(ONE)
    given = ["Жё" * 25_000, '"\n\\' * 20_000, "\udcff\U0001f600 ", ""]
    show = "import os, sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))"
    ran = dock.driver.run(ONE, [*inside.PYTHON, "-c", show, *given], deadline_s=30)
    assert ran.stdout == b"|".join(os.fsencode(one) for one in given), ran.stderr


@pytest.mark.chaos
def test_a_clock_that_is_hours_off_is_set_by_another_start_or_told(dock: Docker) -> None:
    dock.driver.start(ONE)
    for running in (True, False):
        if not running:
            way_out.stop(dock.paths, ONE)
        first = len(dock.calls())
        with dock.ill(clock_off_s=7200):
            assert word(dock) == b"kept\n"
        assert ["stop", named(dock)] in dock.calls()[first:]
    way_out.stop(dock.paths, ONE)
    with dock.ill(clock_off_s=7200, clock_stays_off=True), pytest.raises(SandboxFailed, match="-7200 s off"):
        dock.driver.start(ONE)


def test_one_that_sbx_started_by_itself_runs_nothing_of_ours(dock: Docker) -> None:
    dock.driver.start(ONE)
    calls.do(["stop", named(dock)], deadline_s=30)
    calls.do(["exec", named(dock), "true"], deadline_s=30)
    with pytest.raises(SandboxGone):
        dock.driver.run(ONE, ["true"], deadline_s=30)
    assert word(dock) == b"kept\n"


def test_a_start_that_fails_makes_nothing_anew(dock: Docker) -> None:
    dock.driver.stop(ONE, deadline_s=0.1)
    before = docker_has(dock)
    with dock.ill(broken_start=True), pytest.raises(DaemonFailed, match="the sandbox daemon does not work"):
        dock.driver.start(ONE)
    assert docker_has(dock) == before
    assert word(dock) == b"kept\n"


def test_what_a_disk_holds_is_known_without_asking_inside(dock: Docker) -> None:
    dock.driver.start(ONE)
    used = dock.driver.disk_used_mib(ONE)
    before = len(dock.calls())
    assert dock.driver.disk_used_mib(ONE, may_ask=False) == used
    assert len(dock.calls()) == before


def test_what_is_kept_of_a_disk_touches_nothing_else_of_a_sandbox(dock: Docker) -> None:
    dock.driver.start(ONE)
    before = (saved.place(dock.paths, ONE) / "sbx.json").stat()
    dock.driver.disk_used_mib(ONE)
    assert (saved.place(dock.paths, ONE) / "sbx.json").stat() == before
    place = saved.place(dock.paths, ONE) / "sbx.json"
    durable.write(place, json.dumps({**json.loads(place.read_bytes()), "used_mib": 3}).encode())
    assert saved.load(dock.paths, ONE).identity is not None  # of a file that held it itself, once
    saved.keep_used(dock.paths, "nobody", 1)
    assert not saved.place(dock.paths, "nobody").exists()
