"""What every driver promises, proved against each engine that runs here."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.contract.asking import run, state
from tests.contract.conftest import House
from troupe_tasks import durable
from troupe_tasks.errors import (
    AlreadyExists,
    DiskFull,
    SandboxFailed,
    SandboxGone,
    SandboxTimeout,
    TroupeError,
)
from troupe_tasks.record import sandbox_of
from troupe_tasks.sandbox.protocol import State

Fresh = Callable[[], str]
pytestmark = pytest.mark.own_sbx
ROOT = os.geteuid() == 0
_DEEP = 'python3 -c \'import os; [(os.mkdir("d"), os.chdir("d")) for _ in range(1500)]\''


def child_env(house: House) -> dict[str, str]:
    """Return the environment in which another process finds the same folders."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return {**kept, "HOME": str(house.paths.data.parents[2])}


# --- life


def test_a_life_from_create_to_remove_keeps_state_and_leaves_nothing(house: House, fresh: Fresh) -> None:
    one = fresh()
    identity = house.driver.create(house.spec(one))
    assert state(house, one) in {State.STOPPED, State.RUNNING}
    assert house.driver.create(house.spec(one)) == identity
    house.driver.start(one)
    house.driver.start(one)
    info = house.driver.list().find(one)
    assert info is not None
    assert (info.state, info.identity, info.sizes) == (State.RUNNING, identity, house.small)
    if house.driver.name == "capsule":
        assert info.isolation is house.kernel  # the one that was asked for, whichever is the strongest here
    assert run(house, one, "sh", "-c", "echo kept > /state/a; echo lost > /tmp/b").status == 0
    pids = house.driver.pids(one)
    assert pids
    house.driver.stop(one, deadline_s=10)
    house.driver.stop(one, deadline_s=10)
    assert state(house, one) is State.STOPPED
    assert gone(pids)
    house.driver.start(one)
    assert run(house, one, "sh", "-c", "cat /state/a; ls /tmp").stdout == b"kept\n"
    closed = "mkdir -p go/pkg; echo >go/pkg/file; chmod 555 go/pkg go; mkdir -m 0 shut"
    assert run(house, one, "sh", "-c", f"{closed}; {_DEEP}").status == 0
    pids = house.driver.pids(one)
    house.driver.remove(one)
    house.driver.remove(one)
    assert state(house, one) is State.MISSING
    assert traces(house, one) == []
    assert gone(pids)


def gone(pids: tuple[int, ...]) -> bool:
    """Tell whether none of these processes is left, once the machine's init has collected them."""
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def traces(house: House, sandbox_id: str) -> list[str]:
    """Return whatever on this machine still bears a sandbox's ID: files, mounts, loop devices, control groups."""
    found = [
        str(path) for root in (house.paths.data, house.paths.run) for path in root.rglob(f"*{sandbox_id}*")
    ]
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if sandbox_id in line]
    found += [
        backing
        for file in Path("/sys/block").glob("loop*/loop/backing_file")
        if sandbox_id in (backing := file.read_text())
    ]
    found += [str(path) for path in Path("/sys/fs/cgroup").rglob(f"troupe/{sandbox_id}*")]
    return found


def own_files(house: House, sandbox_id: str) -> list[Path]:
    """Return what the driver and its runtime keep about a running sandbox, in JSON; its own file comes first."""
    folder, runtime = house.paths.sandbox(sandbox_id), house.paths.run / "runsc"
    found = [*folder.glob("*.json"), *folder.glob("bundle/*.json"), *runtime.glob(f"{sandbox_id}.*.state")]
    return sorted(found, key=lambda file: file.name != "spec.json")


def ask_everything(house: House, sandbox_id: str) -> None:
    """Call what may refuse a damaged sandbox, but as nothing else than an error of troupe's."""
    driver = house.driver
    asked: list[Callable[[], object]] = [
        driver.list, partial(driver.sizes, sandbox_id), partial(driver.pids, sandbox_id),
        partial(driver.disk_used_mib, sandbox_id), partial(run, house, sandbox_id, "true"),
        partial(driver.gateway_argv, sandbox_id, ["true"], {}), partial(driver.create, house.spec(sandbox_id)),
        partial(driver.start, sandbox_id),
    ]  # fmt: skip
    for ask in asked:
        with suppress(TroupeError):
            ask()


@pytest.mark.parametrize("damage", [pytest.param("", marks=pytest.mark.chaos), '{"a": 1}'])
def test_with_whatever_file_of_its_own_damaged_one_can_be_stopped_started_and_removed(
    house: House, fresh: Fresh, damage: str
) -> None:
    house.only("capsule", why="where the files are, is the capsule's")
    driver, one = house.driver, house.started(fresh())
    own, *others = own_files(house, one)
    assert own.name == "spec.json"
    assert {"cgroups.json"} < {file.name for file in others}
    for file in others:
        pids = driver.pids(one)
        file.write_text(damage)
        ask_everything(house, one)
        driver.stop(one, deadline_s=1)
        assert gone(pids), file
        driver.start(one)
        assert run(house, one, "true").status == 0
    pids = driver.pids(one)
    for file in others:
        file.write_text(damage)
    driver.remove(one)
    assert gone(pids)
    assert traces(house, one) == []


@pytest.mark.parametrize("damage", ["", "{"])
def test_one_whose_own_file_is_damaged_is_broken_and_can_be_stopped_and_removed(
    house: House, fresh: Fresh, damage: str
) -> None:
    house.only("capsule", why="where the file is, is the capsule's")
    one = house.started(fresh())
    pids = house.driver.pids(one)
    folder = house.paths.sandbox(one)
    (folder / "spec.json").write_text(damage)
    if damage and (folder / "run.json").exists():
        (folder / "run.json").write_text(
            damage
        )  # then its control groups, or the place of its disk, show what runs
    listing = house.driver.list()
    info = listing.find(one)
    assert info is not None
    assert (info.state, listing.complete) == (State.BROKEN, True)
    ask_everything(house, one)
    house.started(fresh())
    house.driver.stop(one, deadline_s=1)
    assert gone(pids)
    house.driver.remove(one)
    assert traces(house, one) == []
    assert state(house, one) is State.MISSING


def test_another_plan_under_a_taken_id_is_refused(house: House, shared: str) -> None:
    with pytest.raises(AlreadyExists):
        house.driver.create(house.spec(shared, sizes=house.small.model_copy(update={"cpus": 2})))


def test_starting_what_is_not_there_never_makes_an_empty_one(house: House) -> None:
    with pytest.raises(SandboxGone):
        house.driver.start("nobody")
    assert not house.paths.sandbox("nobody").exists()


def test_start_goes_on_after_being_killed_at_any_moment(house: House, fresh: Fresh) -> None:
    one = fresh()
    house.driver.create(house.spec(one))
    code = (
        "import sys; from troupe_tasks.paths import Paths\n"
        "from troupe_tasks.sandbox.drivers import open_driver\n"
        "from troupe_tasks.sandbox.protocol import Isolation\n"
        f"d = {house.opening}\n"
        "print('go', flush=True); d.start(sys.argv[1])"
    )
    slow = house.driver.name == "sbx"  # its start is some five calls of a program
    for delay_s in (0.7,) if slow else (0.05, 0.15, 0.25, 0.4):
        child = subprocess.Popen(
            [sys.executable, "-c", code, one],
            env=child_env(house), cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == b"go\n"
        time.sleep(delay_s)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        house.driver.start(one)
        assert run(house, one, "true").status == 0
        house.driver.stop(one, deadline_s=0.2)
    house.driver.remove(one)
    left = [path for path in house.paths.run.rglob("*") if one in path.name]
    assert left == []


def test_a_start_that_finds_the_disk_full_leaves_no_control_group(
    house: House, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.only("capsule", why="it makes no control groups")
    sandbox = fresh()
    house.driver.create(house.spec(sandbox))

    def full(path: Path, _data: bytes) -> None:
        raise DiskFull(f"no room left to write {path}")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write", full)
        with pytest.raises(DiskFull):
            house.driver.start(sandbox)
    assert not list(Path("/sys/fs/cgroup").glob(f"**/troupe/{sandbox}.*"))
    house.driver.start(sandbox)


def test_create_goes_on_after_being_killed_at_any_moment(house: House, fresh: Fresh) -> None:
    one = fresh()
    spec = house.spec(one, sizes=house.small.model_copy(update={"storage_mib": 2048}))
    code = (
        "import sys, pathlib; from troupe_tasks.paths import Paths\n"
        "from troupe_tasks.sandbox.drivers import open_driver\n"
        "from troupe_tasks.sandbox.protocol import *\n"
        f"d = {house.opening}\n"
        "s = SandboxSpec.model_validate_json(sys.argv[1]); print('go', flush=True); d.create(s)"
    )
    slow = house.driver.name == "sbx"
    for delay_s in (1.2,) if slow else (0.0, 0.005, 0.02, 0.05, 0.1):
        child = subprocess.Popen(
            [sys.executable, "-c", code, spec.model_dump_json()],
            env=child_env(house), cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == b"go\n"
        time.sleep(delay_s)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert house.driver.list().complete
    identity = house.driver.create(spec)
    house.driver.start(one)
    assert run(house, one, "sh", "-c", "touch /state/x && touch /workspace/y").status == 0
    assert house.driver.create(spec) == identity


def test_a_running_sandbox_killed_from_outside_is_seen_as_stopped_and_starts_again(
    house: House, fresh: Fresh
) -> None:
    house.only("capsule", why="its machine's processes are Docker's, see test_sbx.py")
    one = house.started(fresh())
    run(house, one, "sh", "-c", "echo kept > /state/a; sync")
    for pid in house.driver.pids(one):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + 10
    while state(house, one) is State.RUNNING and time.monotonic() < deadline:
        time.sleep(0.05)
    assert state(house, one) is State.STOPPED
    with pytest.raises(SandboxGone):
        run(house, one, "true")
    house.driver.start(one)
    assert run(house, one, "cat", "/state/a").stdout == b"kept\n"


def test_a_listing_of_many_costs_about_one(house: House, fresh: Fresh) -> None:
    house.only(
        "capsule", why="twenty virtual machines are too many; its listing is one call, see test_sbx.py"
    )
    ids = [fresh() for _ in range(20)]
    for one in ids:
        house.driver.create(house.spec(one))
    started = time.monotonic()
    listing = house.driver.list()
    assert time.monotonic() - started < 3
    assert listing.complete
    assert {info.id for info in listing.sandboxes} >= set(ids)


# --- commands


@pytest.mark.parametrize("status", [0, 1, 3, 42, 126, 127, 128, 130, 137, 143, 255])
def test_exit_statuses_come_back_exactly(house: House, shared: str, status: int) -> None:
    assert run(house, shared, "sh", "-c", f"exit {status}").status == status


def test_a_killed_command_reads_as_in_a_shell(house: House, shared: str) -> None:
    assert run(house, shared, "sh", "-c", "kill -9 $$").status == 137


def test_a_program_that_is_not_there_is_127(house: House, shared: str) -> None:
    assert run(house, shared, "no-such-program").status == 127


def test_arguments_travel_verbatim_and_may_be_empty(house: House, shared: str) -> None:
    odd = ["", "a b", "--root=/", "-", "é\n\t\"'$(id)`id`\\", "*"]
    done = run(house, shared, "printf", "%s|", *odd)
    assert done.stdout.decode() == "".join(f"{word}|" for word in odd)


def test_stdin_and_both_outputs_are_byte_exact_and_apart(house: House, shared: str) -> None:
    data = bytes(range(256)) * 1024
    done = run(house, shared, "sh", "-c", "cat; printf '\\0err' >&2", stdin=data)
    assert (done.stdout, done.stderr, done.truncated) == (data, b"\0err", False)


def test_output_past_the_cap_is_dropped_and_said(house: House, shared: str) -> None:
    done = house.driver.run(shared, ["head", "-c", "3000000", "/dev/zero"], deadline_s=30, cap_bytes=1000)
    assert (done.stdout, done.truncated, done.status) == (bytes(1000), True, 0)


def test_cwd_and_env_are_as_asked(house: House, shared: str) -> None:
    script = 'pwd; echo "$TROUPE_SAMPLE/$MINE"'
    done = house.driver.run(shared, ["sh", "-c", script], cwd="/state", env={"MINE": "a=b c"}, deadline_s=30)
    assert done.stdout == b"/state\nfrom the spec/a=b c\n"
    assert run(house, shared, "pwd").stdout == b"/workspace\n"


def test_at_the_deadline_the_command_and_all_its_children_are_gone(house: House, shared: str) -> None:
    with pytest.raises(SandboxTimeout):
        run(
            house,
            shared,
            "sh",
            "-c",
            "sleep 9871 & setsid sleep 9872 & (setsid sleep 9873 &) ; sleep 9874",
            deadline_s=1,
        )
    seen = run(house, shared, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
    assert b"sleep 987" not in seen


def test_a_command_that_ignores_term_still_ends_at_stop(house: House, fresh: Fresh) -> None:
    one = house.started(fresh())
    child = gateway(house, one, "sh", "-c", "trap '' TERM INT; echo up; while :; do sleep 1; done")
    house.driver.stop(one, deadline_s=1)
    child.wait(20)
    close(child)
    assert state(house, one) is State.STOPPED


# --- bulk


def test_a_stream_is_hashed_and_whole(house: House, shared: str) -> None:
    data = os.urandom(5 << 20)
    sink = io.BytesIO()
    done = house.driver.stream(
        shared, ["cat"], source=io.BytesIO(data), sink=sink, cap_bytes=len(data), deadline_s=60
    )  # fmt: skip
    assert sink.getvalue() == data
    assert (done.status, done.bytes, done.sha256) == (0, len(data), hashlib.sha256(data).hexdigest())


def test_a_stream_past_its_cap_stops_and_writes_no_more(house: House, shared: str) -> None:
    sink = io.BytesIO()
    with pytest.raises(SandboxFailed):
        house.driver.stream(shared, ["cat", "/dev/zero"], sink=sink, cap_bytes=100_000, deadline_s=30)
    assert len(sink.getvalue()) == 100_000
    with pytest.raises(SandboxFailed):
        house.driver.stream(
            shared, ["cat"], source=io.BytesIO(bytes(200_000)), cap_bytes=100_000, deadline_s=30
        )


# --- gateways and terminals


def gateway(house: House, sandbox_id: str, *argv: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        house.driver.gateway_argv(sandbox_id, argv, {}), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    return child


def close(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    child.stdout.close()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 7), (signal.SIGTERM, 9)])
def test_a_gateway_gets_signals_and_ends_with_its_own_status(
    house: House, shared: str, number: int, status: int
) -> None:
    child = gateway(
        house, shared, "/usr/bin/python3", "-u", "-c",
        "import signal, sys\nsignal.signal(2, lambda *_: sys.exit(7))\nsignal.signal(15, lambda *_: sys.exit(9))\n"
        "print('up')\nwhile True: signal.pause()",
    )  # fmt: skip
    child.send_signal(number)
    assert child.wait(20) == status
    close(child)


def test_a_new_gateway_ends_what_a_killed_one_left_inside(house: House, shared: str) -> None:
    first = gateway(house, shared, "sh", "-c", "echo up; sleep 9881; true")
    first.kill()
    first.wait()
    close(first)
    second = gateway(house, shared, "sh", "-c", "echo up; exec sleep 9882")
    seen = run(house, shared, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
    assert b"sleep 9881" not in seen
    assert b"sleep 9882" in seen
    second.send_signal(signal.SIGTERM)
    second.wait(20)
    close(second)


def test_attach_is_a_raw_terminal_that_follows_its_window(house: House, shared: str) -> None:
    code = (
        "import sys; from troupe_tasks.paths import Paths; from troupe_tasks.sandbox.drivers import open_driver\n"
        "from troupe_tasks.sandbox.protocol import Isolation\n"
        f"d = {house.opening}\n"
        "sys.exit(d.attach(sys.argv[1], ['sh', '-c', sys.argv[2]]))"
    )
    script = (
        "test -t 0 && test -t 1 && stty size; stty raw -echo; printf '\\033[1mbold\\r\\n'; stty sane; echo ready; "
        "read line; stty size; echo got-$line; exit 5"
    )
    argv = [sys.executable, "-c", code, shared, script]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(Path(__file__).parents[2])
        os.execve(sys.executable, argv, {**child_env(house), "TERM": "xterm"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    seen = _until(terminal, b"ready")
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 121, 0, 0))
    os.write(terminal, b"hello\n")
    seen += _until(terminal, b"got-hello")
    _pid, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"\x1b[1mbold\r\n" in seen
    assert b"41 121" in seen
    assert os.waitstatus_to_exitcode(status) == 5


def _until(terminal: int, word: bytes) -> bytes:
    seen = b""
    deadline = time.monotonic() + 30
    while word not in seen and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                seen += os.read(terminal, 4096)
            except OSError:
                break
    assert word in seen, seen
    return seen


def test_a_stopped_sandbox_runs_nothing_and_its_agent_is_named_to_be_started(house: House) -> None:
    one = sandbox_of("mover", 2)
    house.driver.create(house.spec(one))
    try:
        if house.driver.name == "sbx":  # which leaves it running
            house.driver.stop(one, deadline_s=1)
        for asked in (house.driver.attach, partial(house.driver.run, deadline_s=20)):
            with pytest.raises(SandboxGone) as told:
                asked(one, ["true"])
            assert told.value.hint == "`troupe start mover` starts it."
    finally:
        house.driver.remove(one)
