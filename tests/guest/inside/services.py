"""The contract of Services against a real systemd; run inside the guest, as root."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from tests.guest.inside import help as h
from troupe_tasks import resources
from troupe_tasks.errors import EgressFailed, NotReady
from troupe_tasks.operations import outlets
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths
from troupe_tasks.services import choose, units
from troupe_tasks.services.protocol import Phase
from troupe_tasks.services.systemd import Systemd

_UNITS = Path("/etc/systemd/system")


@pytest.fixture
def paths(request: pytest.FixtureRequest) -> Paths:
    return h.home(Path("/root", f"{request.node.name[:40]} a b ;c #d %e [f] 'g' é $HOME \"q\""))


@pytest.fixture
def keeper(paths: Paths) -> Iterator[Systemd]:
    one = Systemd(paths)
    yield one
    one.shutdown()
    mark = units.tag(paths)
    assert [path for path in _UNITS.rglob("*") if mark in path.name] == []
    assert not (paths.state / "units").exists()


def ours(facts: str, unit: str) -> str:
    argv = ["systemctl", "show", f"--property={facts}", "--value", unit]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def test_root_gets_systemd(paths: Paths) -> None:
    assert isinstance(choose.keeper(paths), Systemd)


def test_a_started_service_runs_and_logs_privately(paths: Paths, keeper: Systemd) -> None:
    script = 'echo "$MARK|$1"; env | cut -d= -f1 | sort | tr "\\n" " "; echo; echo up; exec sleep 9999'
    odd = "% ; #'\" $HOME ${HOME} \\ `x`"
    one = h.service(paths, argv=("/bin/sh", "-c", script, "sh", f"{odd}\té"), env={"MARK": odd})
    h.started(keeper, one)
    h.until(lambda: h.phase(keeper) is Phase.RUNNING)
    said = one.log.read_text(encoding="utf-8").splitlines()
    assert said[0] == f"{odd}|{odd}\té"
    assert set(said[1].split()) - {"PWD", "SHLVL", "_", "OLDPWD"} <= {
        "HOME", "LANG", "MARK", "PATH", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "LOGNAME", "USER", "SHELL",
    }  # fmt: skip
    assert one.log.stat().st_mode & 0o077 == 0
    assert keeper.states()[h.NAME].since == pytest.approx(time.time(), abs=60)


def test_a_killed_service_comes_back(paths: Paths, keeper: Systemd) -> None:
    first = h.started(keeper, h.service(paths))
    os.kill(first, signal.SIGKILL)
    h.until(lambda: keeper.states()[h.NAME].pid not in {None, first})
    h.until(lambda: h.phase(keeper) is Phase.RUNNING)


def test_a_service_that_keeps_ending_is_restarted_with_growing_pauses_and_then_failed(
    paths: Paths, keeper: Systemd
) -> None:
    one = h.service(paths, "date +%s.%N; exit 7")
    keeper.add(one)
    keeper.start([h.NAME])
    seen: list[Phase] = []

    def has_failed() -> bool:
        seen.append(h.phase(keeper))
        return seen[-1] is Phase.FAILED

    h.until(has_failed, deadline_s=120)
    assert Phase.WAITING in seen
    moments = [float(row) for row in one.log.read_text(encoding="ascii").split()]
    pauses = [late - early for early, late in pairwise(moments)]
    print("pauses:", [round(pause, 2) for pause in pauses])
    assert len(moments) == one.start_tries + 1
    assert pauses == sorted(pauses)
    assert pauses[-1] > 2 * pauses[0]
    state = keeper.states()[h.NAME]
    assert "too quickly" in state.why
    assert "status 7" in state.why
    assert state.since == pytest.approx(time.time(), abs=30)
    keeper.start([h.NAME])  # a person may always ask again
    h.until(lambda: len(one.log.read_text(encoding="ascii").split()) > len(moments))


def test_a_final_exit_status_is_not_restarted(paths: Paths, keeper: Systemd) -> None:
    h.started(keeper, h.service(paths, "echo up; sleep 2; exit 78", final_exits=(78,)))
    h.until(lambda: h.phase(keeper) is Phase.ENDED)
    assert keeper.states()[h.NAME].exit == 78


def test_stop_asks_by_sigint_and_ends_what_is_left(paths: Paths, keeper: Systemd) -> None:
    script = "trap 'echo asked; exit 0' INT; sleep 9999 & echo $!; echo up; while :; do sleep 0.2; done"
    services = [h.service(paths, script, name=f"gateway-{name}") for name in ("a", "b")]
    processes = [h.started(keeper, one) for one in services]
    processes += [int(one.log.read_text(encoding="ascii").split()[0]) for one in services]
    assert keeper.stop(["gateway-a", "gateway-b"]) == ()
    assert [one.log.read_text(encoding="ascii").split()[-1] for one in services] == ["asked", "asked"]
    assert {state.phase for state in keeper.states().values()} == {Phase.STOPPED}
    h.until(lambda: all(map(h.is_gone, processes)))


def test_stop_tells_which_had_to_be_killed(paths: Paths, keeper: Systemd) -> None:
    deaf = h.started(keeper, h.service(paths, h.DEAF, stop_wait_s=1))
    assert keeper.stop([h.NAME]) == (h.NAME,)
    assert h.is_gone(deaf)
    assert h.phase(keeper) is Phase.STOPPED


def test_starting_twice_and_stopping_twice_is_fine(paths: Paths, keeper: Systemd) -> None:
    first = h.started(keeper, h.service(paths))
    keeper.start([h.NAME])
    assert h.pid(keeper) == first
    keeper.stop([h.NAME])
    assert keeper.stop([h.NAME]) == ()


def test_adding_the_same_again_leaves_it_running_and_a_change_stops_it(paths: Paths, keeper: Systemd) -> None:
    first = h.started(keeper, h.service(paths))
    keeper.add(h.service(paths))
    assert h.pid(keeper) == first
    keeper.add(h.service(paths, stop_wait_s=9))
    assert h.phase(keeper) is Phase.STOPPED
    keeper.restart([h.NAME])
    assert h.pid(keeper) != first


def test_an_unknown_service_is_told(keeper: Systemd) -> None:
    with pytest.raises(NotReady, match="gateway-nobody"):
        keeper.start(["gateway-nobody"])


def test_a_removed_service_leaves_no_file(paths: Paths, keeper: Systemd) -> None:
    h.started(keeper, h.service(paths))
    keeper.remove(h.NAME)
    keeper.remove(h.NAME)
    assert keeper.states() == {}
    assert [path for path in _UNITS.rglob("*") if units.tag(paths) in path.name] == []


def test_two_homes_with_one_agent_id_do_not_meet(paths: Paths, keeper: Systemd) -> None:
    other = h.home(Path("/root/another"))
    second = Systemd(other)
    try:
        first = h.started(keeper, h.service(paths))
        h.started(second, h.service(other))
        second.remove(h.NAME)
        assert h.pid(keeper) == first
    finally:
        second.shutdown()


def test_a_sandbox_started_by_its_gateway_gets_its_group_inside_the_units_own(
    paths: Paths, keeper: Systemd
) -> None:
    code = "import troupe_tasks.host.cgroups as c, time\nprint(c.make('x', c.Limits(64, 1, 20)), 'up', flush=True)\n"
    one = h.service(
        paths,
        argv=(sys.executable, "-c", f"{code}time.sleep(9999)"),
        env={"PYTHONPATH": "/opt/troupe:/opt/lib"},
    )
    h.started(keeper, one)
    group = ours("ControlGroup", units.files(h.NAME, paths, units.place()).unit)
    said = one.log.read_text(encoding="utf-8")
    print(said)
    assert f"/sys/fs/cgroup{group}/troupe/x" in said.replace("\\\\", "\\")


def test_the_broker_and_the_rehearsal_model_live_in_their_hardened_units(paths: Paths) -> None:
    house = House(paths)
    keeper = house.services
    assert isinstance(keeper, Systemd)
    try:
        with suppress(EgressFailed):  # under emulation a start takes longer than it waits
            outlets.ensure(house, rehearsal=True)
        house.broker.wait_until_ready(deadline_s=120)
        h.until(lambda: all(state.phase is Phase.RUNNING for state in keeper.states().values()))
        at = units.place()
        for name in ("broker", "rehearsal"):
            unit = units.files(name, paths, at).unit
            assert ours("NRestarts", unit) == "0", outlets.log(house, name).read_text(encoding="utf-8")
        assert keeper.stop(["broker", "rehearsal"]) == ()
    finally:
        keeper.shutdown()


def test_a_flood_of_output_is_rotated_while_it_goes_on(paths: Paths, keeper: Systemd) -> None:
    keeper.add(h.service(paths, name="broker"))
    keeper.start(["broker"])
    timer = f"troupe-logs{units.tag(paths)}.timer"
    assert ours("ActiveState", timer) == "active"
    script = "head -c 8000000 /dev/zero | tr '\\0' x; echo up; while :; do sleep 0.2; echo more; done"
    one = h.service(paths, script)
    h.started(keeper, one)
    subprocess.run(["systemctl", "start", timer.replace(".timer", ".service")], check=True)
    assert one.log.with_name(f"{one.log.name}.1").stat().st_size == 5_000_000
    h.until(lambda: one.log.read_bytes().startswith(b"more\n"))
    keeper.shutdown()
    assert ours("ActiveState", timer) == "inactive"


def test_the_units_verify_and_what_they_expose(paths: Paths, keeper: Systemd) -> None:
    for name in (h.NAME, "broker", "rehearsal"):
        keeper.add(h.service(paths, name=name))
    at = units.place()
    installed = [units.files(name, paths, at).unit for name in (h.NAME, "broker", "rehearsal")]
    installed.append(f"troupe-logs{units.tag(paths)}.service")
    found = subprocess.run(
        ["systemd-analyze", "verify", *installed], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")
    argv = ["systemd-analyze", "security", "--no-pager", *installed]
    for unit in installed:
        told = subprocess.run([*argv[:3], unit], capture_output=True, text=True, check=False).stdout
        print(told.strip().splitlines()[-1])
    others = {"sbx-daemon.service"}  # daemon.py sees to that one
    assert len({path.name for path in resources.units_dir().glob("*.service")} - others) == len(installed)


def test_an_ordinary_user_has_them_under_their_own_manager() -> None:
    argv = ["runuser", "-u", "op", "--", "env", "HOME=/home/op", "PYTHONPATH=/opt/troupe:/opt/lib"]
    script = Path(__file__).with_name("as_user.py")
    done = subprocess.run(
        [*argv, sys.executable, str(script)], capture_output=True, text=True, cwd="/", check=False
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0


def test_leave_services_for_the_next_boot() -> None:
    paths = Paths.from_env({"HOME": "/root"})
    keeper = Systemd(paths)
    assert units.tag(paths) == ""
    h.started(keeper, h.service(paths))
    down = h.service(paths, name="gateway-down")
    h.started(keeper, down)
    keeper.stop([down.name])
    assert (_UNITS / "multi-user.target.wants/hermes-gateway@jane.service").exists()
