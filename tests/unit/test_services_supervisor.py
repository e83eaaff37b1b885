"""Real supervisord under a temporary folder, whose name holds what its own format can't."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from troupe_tasks import durable
from troupe_tasks.errors import DiskFull, NotReady
from troupe_tasks.paths import Paths
from troupe_tasks.services import launch
from troupe_tasks.services.protocol import Phase, Service
from troupe_tasks.services.supervisor import Supervisor

_STAYS = "import time\nprint('up', flush=True)\nwhile True: time.sleep(60)"
_DEAF = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + _STAYS


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    root = tmp_path / "a b ;c #d %e [f] 'g' é" / ("long-" * 20)
    return Paths(data=root / "data", config=root / "config", state=root / "state")


@pytest.fixture
def keeper(paths: Paths) -> Iterator[Supervisor]:
    one = Supervisor(paths)
    yield one
    one.shutdown()
    folder = paths.run / "supervisor" / "programs"
    assert [launch.holders(lock) for lock in folder.glob("*.lock")] == [[] for _ in folder.glob("*.lock")]


def service(
    paths: Paths,
    code: str = _STAYS,
    *,
    name: str = "gateway-jane",
    stop_wait_s: int = 5,
    start_tries: int = 1,
    final_exits: tuple[int, ...] = (),
    relayed: bool = False,
) -> Service:
    return Service(
        name=name, argv=(sys.executable, "-I", "-S", "-c", code), log=paths.logs("jane") / f"{name}.log",
        env={"MARK": "% ; #'\""}, start_s=1, start_tries=start_tries, stop_wait_s=stop_wait_s,
        final_exits=final_exits, relayed=relayed,
    )  # fmt: skip


def until(what: Callable[[], bool], deadline_s: float = 20) -> None:
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, "the awaited did not happen"
        time.sleep(0.02)


def phase(keeper: Supervisor, name: str = "gateway-jane") -> Phase:
    return keeper.states()[name].phase


def pid(keeper: Supervisor, name: str = "gateway-jane") -> int:
    until(lambda: keeper.states()[name].pid is not None)
    return keeper.states()[name].pid or 0


def started(keeper: Supervisor, one: Service) -> int:
    keeper.add(one)
    keeper.start([one.name])
    until(lambda: one.log.is_file() and b"up" in one.log.read_bytes())
    return pid(keeper, one.name)


def test_states_without_services_starts_nothing(paths: Paths) -> None:
    assert Supervisor(paths).states() == {}
    assert not paths.run.exists()


def test_a_started_service_runs_and_logs_privately(paths: Paths, keeper: Supervisor) -> None:
    one = service(paths, "import os\nprint(os.environ['MARK'], sorted(os.environ))\n" + _STAYS)
    started(keeper, one)
    until(lambda: phase(keeper) is Phase.RUNNING)
    assert one.log.read_text(encoding="utf-8").startswith("% ; #'\" ['HOME', 'LANG', ")
    assert one.log.stat().st_mode & 0o077 == 0
    assert keeper.states()["gateway-jane"].since == pytest.approx(time.time(), abs=30)
    socket = paths.run / "supervisor" / "supervisor.sock"
    assert socket.stat().st_mode & 0o077 == 0


def test_a_killed_service_comes_back(paths: Paths, keeper: Supervisor) -> None:
    first = started(keeper, service(paths))
    os.kill(first, signal.SIGKILL)
    until(lambda: keeper.states()["gateway-jane"].pid not in {None, first})
    until(lambda: phase(keeper) is Phase.RUNNING)


def test_a_service_that_keeps_ending_fails_after_its_limit(paths: Paths, keeper: Supervisor) -> None:
    keeper.add(service(paths, "raise SystemExit(7)"))
    keeper.start(["gateway-jane"])
    until(lambda: phase(keeper) is Phase.FAILED)
    state = keeper.states()["gateway-jane"]
    assert "too quickly" in state.why
    assert state.since == pytest.approx(time.time(), abs=30)


_LASTS = "import time\nprint('up', time.time(), flush=True)\ntime.sleep(1.2)\nraise SystemExit(7)"


def starts(one: Service) -> list[float]:
    """Return when a service started that lasts a little longer than start_s each time."""
    rows = one.log.read_text(encoding="ascii").splitlines() if one.log.exists() else []
    return [float(row.split()[1]) for row in rows if row.startswith("up ")]


def test_one_that_ends_each_time_after_it_counted_as_started_is_paused_and_given_up(
    paths: Paths, keeper: Supervisor
) -> None:
    one = service(paths, _LASTS, start_tries=2)
    keeper.add(one)
    keeper.start([one.name])
    seen: list[Phase] = []

    def is_given_up() -> bool:
        seen.append(phase(keeper))
        return seen[-1] is Phase.FAILED

    until(is_given_up, deadline_s=30)
    state = keeper.states()["gateway-jane"]
    assert {Phase.STARTING, Phase.RUNNING, Phase.WAITING} <= {*seen}
    assert state.why == f"it ended too quickly too often: 3 times within {state.why.split()[-2]} s"
    assert state.since == pytest.approx(time.time(), abs=10)
    moments = starts(one)
    assert len(moments) == 3
    # 1.2 s of life, then pauses of 1 and 2 s.
    assert moments[1] - moments[0] >= 2.2
    assert moments[2] - moments[1] >= 3.2
    assert f"gateway-jane: {state.why}; giving up\n" in one.log.read_text(encoding="ascii")
    keeper.start([one.name])
    assert phase(keeper).up
    until(lambda: len(starts(one)) == 4, deadline_s=5)


def test_one_that_waits_for_its_next_try_stops_at_once_and_starts_at_once(
    paths: Paths, keeper: Supervisor
) -> None:
    one = service(paths, _LASTS, start_tries=5)
    keeper.add(one)
    keeper.start([one.name])
    until(lambda: len(starts(one)) == 2)
    until(lambda: phase(keeper) is Phase.WAITING)
    assert keeper.stop([one.name]) == ()
    assert phase(keeper) is Phase.STOPPED
    assert "Traceback" not in one.log.read_text(encoding="ascii")
    keeper.start([one.name])
    until(lambda: phase(keeper) is Phase.STARTING)
    until(lambda: phase(keeper) is Phase.WAITING)
    keeper.start([one.name])
    assert phase(keeper) is Phase.STARTING


def test_what_is_counted_lasts_no_longer_than_the_limit(tmp_path: Path) -> None:
    note = tmp_path / "one.tries"
    now = launch.clock()
    assert launch.tries(note) == launch.Tries()
    for broken in ("", "[", "[1, 2]", '[["x"], 0, 0]', "[[1], null, 0]"):
        note.write_text(broken, encoding="ascii")
        assert launch.tries(note) == launch.Tries()
    long_ago = [now - 60.0, now - 50.0, now - 1000.0, now + 1000.0]
    note.write_text(json.dumps([long_ago, 0, 0]), encoding="ascii")
    launch._hold_back(note, pauses_s=[0], limit_s=40)
    (last,) = launch.tries(note).starts
    assert last >= now
    launch._hold_back(note, pauses_s=[0], limit_s=40)
    with pytest.raises(SystemExit):
        launch._hold_back(note, pauses_s=[0], limit_s=40)
    assert launch.tries(note).given_up >= now


def test_a_final_exit_status_is_not_restarted(paths: Paths, keeper: Supervisor) -> None:
    ends = "import time\nprint('up', flush=True)\ntime.sleep(1.5)\nraise SystemExit(78)"
    first = started(keeper, service(paths, ends, final_exits=(78,)))
    until(lambda: phase(keeper) is Phase.ENDED)
    assert keeper.states()["gateway-jane"].exit == 78
    assert not Path("/proc", str(first)).exists()


def test_stop_ends_the_whole_group_at_once_for_all(paths: Paths, keeper: Supervisor) -> None:
    child = "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid)\n"
    services = [service(paths, child + _STAYS, name=f"gateway-{n}") for n in ("a", "b")]
    processes = [started(keeper, one) for one in services]
    processes += [int(one.log.read_text(encoding="ascii").split()[0]) for one in services]
    assert keeper.stop(["gateway-a", "gateway-b"]) == ()
    assert {state.phase for state in keeper.states().values()} == {Phase.STOPPED}
    until(lambda: not any(Path("/proc", str(process), "exe").exists() for process in processes))


def test_stop_tells_which_had_to_be_killed(paths: Paths, keeper: Supervisor) -> None:
    started(keeper, service(paths, _DEAF, stop_wait_s=1))
    assert keeper.stop(["gateway-jane"]) == ("gateway-jane",)


def test_starting_twice_and_stopping_twice_is_fine(paths: Paths, keeper: Supervisor) -> None:
    first = started(keeper, service(paths))
    keeper.start(["gateway-jane"])
    assert pid(keeper) == first
    keeper.stop(["gateway-jane"])
    assert keeper.stop(["gateway-jane"]) == ()


def test_adding_the_same_again_leaves_it_running_and_a_change_stops_it(
    paths: Paths, keeper: Supervisor
) -> None:
    first = started(keeper, service(paths))
    keeper.add(service(paths))
    assert pid(keeper) == first
    keeper.add(service(paths, stop_wait_s=9))
    assert phase(keeper) is Phase.STOPPED
    keeper.restart(["gateway-jane"])
    assert pid(keeper) != first


def test_an_unknown_service_is_told(keeper: Supervisor) -> None:
    with pytest.raises(NotReady, match="gateway-nobody"):
        keeper.start(["gateway-nobody"])


def test_a_removed_service_leaves_no_file(paths: Paths, keeper: Supervisor) -> None:
    started(keeper, service(paths))
    keeper.remove("gateway-jane")
    keeper.remove("gateway-jane")
    assert keeper.states() == {}
    assert list((paths.run / "supervisor" / "programs").iterdir()) == []
    assert "gateway-jane" not in (paths.run / "supervisor" / "supervisord.conf").read_text(encoding="utf-8")


def kill_supervisord(paths: Paths) -> None:
    daemon = int((paths.run / "supervisor" / "supervisord.pid").read_text(encoding="ascii"))
    os.kill(daemon, signal.SIGKILL)
    until(lambda: not Path("/proc", str(daemon), "exe").exists())


def test_a_killed_supervisord_comes_back_with_one_of_each_service(paths: Paths, keeper: Supervisor) -> None:
    orphan = started(keeper, service(paths))
    keeper.add(service(paths, name="gateway-down"))
    kill_supervisord(paths)
    assert Path("/proc", str(orphan)).exists()
    until(lambda: keeper.states()["gateway-jane"].phase is Phase.RUNNING)
    lock = paths.run / "supervisor" / "programs" / "gateway-jane.lock"
    until(lambda: launch.holders(lock) == [pid(keeper)])
    assert pid(keeper) != orphan
    assert phase(keeper, "gateway-down") is Phase.STOPPED


def test_an_orphan_is_stopped_without_its_supervisord(paths: Paths, keeper: Supervisor) -> None:
    orphan = started(keeper, service(paths))
    kill_supervisord(paths)
    keeper.stop(["gateway-jane"])
    assert not Path("/proc", str(orphan), "exe").exists()
    assert phase(keeper) is Phase.STOPPED


def test_after_a_machine_restart_nothing_starts_by_itself(
    paths: Paths, keeper: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = started(keeper, service(paths))
    kill_supervisord(paths)
    os.kill(orphan, signal.SIGKILL)
    monkeypatch.setattr("troupe_tasks.services.supervisor._boot", lambda: "another start")
    assert phase(keeper) is Phase.STOPPED
    keeper.start(["gateway-jane"])
    until(lambda: phase(keeper) is Phase.RUNNING)


def children(pid: int) -> list[int]:
    text = Path("/proc", str(pid), "task", str(pid), "children").read_text(encoding="ascii")
    return [int(child) for child in text.split()]


def test_a_relayed_service_logs_safely_and_is_stopped_like_any_other(
    paths: Paths, keeper: Supervisor
) -> None:
    asks = "import signal\nsignal.signal(signal.SIGINT, lambda *_: print('asked', flush=True))\n"
    one = service(paths, asks + "print('\\x1b[2J')\n" + _STAYS, relayed=True, stop_wait_s=1)
    (program,) = children(started(keeper, one))
    assert keeper.stop([one.name]) == (one.name,)
    assert not Path("/proc", str(program), "exe").exists()
    assert one.log.read_text(encoding="ascii") == "\\x1b[2J\nup\nasked\n"


def test_a_killed_relay_leaves_no_second_program(paths: Paths, keeper: Supervisor) -> None:
    relay = started(keeper, service(paths, relayed=True))
    (program,) = children(relay)
    os.kill(relay, signal.SIGKILL)
    until(lambda: keeper.states()["gateway-jane"].pid not in {None, relay})
    lock = paths.run / "supervisor" / "programs" / "gateway-jane.lock"
    until(lambda: children(pid(keeper)) != [] and launch.holders(lock) == children(pid(keeper)))
    assert not Path("/proc", str(program), "exe").exists()


def test_a_flood_of_output_is_rotated(paths: Paths, keeper: Supervisor) -> None:
    one = service(paths, "for _ in range(26000): print('x' * 999)\n" + _STAYS)
    keeper.add(one)
    keeper.start(["gateway-jane"])
    until(lambda: one.log.is_file() and b"up" in one.log.read_bytes(), deadline_s=60)
    found = sorted(path.name for path in one.log.parent.iterdir())
    assert found == [one.log.name + end for end in ("", ".1", ".2", ".3")]
    assert all(path.stat().st_size <= 6 << 20 for path in one.log.parent.iterdir())


def test_shutdown_leaves_no_process(paths: Paths, keeper: Supervisor) -> None:
    first = started(keeper, service(paths))
    daemon = int((paths.run / "supervisor" / "supervisord.pid").read_text(encoding="ascii"))
    keeper.shutdown()
    keeper.shutdown()
    assert not Path("/proc", str(first), "exe").exists()
    assert not Path("/proc", str(daemon), "exe").exists()
    assert phase(keeper) is Phase.STOPPED


def test_a_lost_folder_of_logs_is_made_again(paths: Paths, keeper: Supervisor) -> None:
    one, other = service(paths), service(paths, name="gateway-john")
    started(keeper, one)
    shutil.rmtree(one.log.parent)
    keeper.add(replace(other, log=paths.logs("john") / "gateway.log"))
    assert one.log.parent.stat().st_mode & 0o777 == 0o700
    keeper.restart([one.name])
    until(lambda: one.log.is_file() and b"up" in one.log.read_bytes())


def test_a_service_ignores_nothing_that_the_command_was_started_to_ignore(
    paths: Paths, keeper: Supervisor
) -> None:
    ignored = (signal.SIGHUP, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        code = "import signal\nprint([signal.getsignal(n) for n in (1, 15)] == [signal.SIG_DFL] * 2, 'up')\n"
        one = service(paths, code + _STAYS)
        started(keeper, one)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert one.log.read_bytes().startswith(b"True up")


def test_supervisord_lives_on_while_no_file_can_grow(paths: Paths, keeper: Supervisor) -> None:
    count = paths.state.parent / "count"
    code = (
        f"import pathlib, time\nfor number in range(10**6):\n    print('up', number, flush=True)\n"
        f"    pathlib.Path({str(count)!r}).write_text(str(number))\n    time.sleep(0.01)"
    )
    one = service(paths, code)
    first = started(keeper, one)
    supervisord = int((paths.run / "supervisor" / "supervisord.pid").read_text())
    before = resource.prlimit(supervisord, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    size, printed = one.log.stat().st_size, said(count)
    until(lambda: said(count) > printed + 50)
    assert pid(keeper) == first
    assert int((paths.run / "supervisor" / "supervisord.pid").read_text()) == supervisord
    resource.prlimit(supervisord, resource.RLIMIT_FSIZE, before)
    until(lambda: one.log.stat().st_size > size + 4096)
    assert pid(keeper) == first


def test_what_was_stopped_on_a_full_disk_is_started_by_no_later_supervisord(
    paths: Paths, keeper: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = service(paths), service(paths, name="gateway-john")
    started(keeper, one)
    started(keeper, other)

    def full(path: Path, _data: bytes) -> None:
        raise DiskFull(f"no room left to write {path}")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write", full)
        with pytest.raises(DiskFull):
            keeper.stop([one.name])
    supervisord = int((paths.run / "supervisor" / "supervisord.pid").read_text())
    os.kill(supervisord, signal.SIGKILL)
    until(lambda: not Path("/proc", str(supervisord), "exe").exists())
    assert pid(keeper, other.name)
    assert one.name not in keeper.states()
    assert launch.holders(paths.run / "supervisor" / "programs" / f"{one.name}.lock") == []
    started(keeper, one)


def said(count: Path) -> int:
    """Return how far a service has counted."""
    return int(count.read_text() or 0)
