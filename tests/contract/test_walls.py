"""What stands between a sandbox and everything else, and that its sizes bind, proved against each engine here."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.asking import binds, python, run, state
from tests.contract.conftest import House
from troupe_tasks.errors import SandboxGone
from troupe_tasks.sandbox.protocol import Isolation, State

Fresh = Callable[[], str]
pytestmark = pytest.mark.own_sbx
ROOT = os.geteuid() == 0


def test_nothing_inside_has_a_capability_or_is_the_hosts_root(house: House, shared: str) -> None:
    status = run(house, shared, "cat", "/proc/self/status").stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == int(fields["CapBnd"], 16) == 0
    if ROOT:
        assert fields["Uid"].split() == ["1000"] * 4
    assert run(house, shared, "sh", "-c", "chown 0:1 /state; mount -t tmpfs x /workspace").status != 0
    house.only("capsule", why="what stands around it are no processes that sbx tells of")
    for pid in house.driver.pids(shared):
        host = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        uids = {int(word) for word in host["Uid"].split()}
        assert uids == {os.geteuid()} if not ROOT else min(uids) >= 500_000_000


def test_a_filter_stands_before_the_hosts_kernel(house: House, shared: str) -> None:
    house.only("capsule", why="a virtual machine has a kernel of its own")
    modes = []
    for pid in house.driver.pids(shared):
        text = Path(f"/proc/{pid}/status").read_text()
        modes.append(next(line.split()[1] for line in text.splitlines() if line.startswith("Seccomp:")))
    assert modes.count("2") >= (len(modes) if house.driver.isolation() is Isolation.GVISOR else 1)
    if house.driver.isolation() is Isolation.NAMESPACES:
        assert b"Seccomp:\t2" in run(house, shared, "cat", "/proc/self/status").stdout
        assert b"NoNewPrivs:\t1" in run(house, shared, "cat", "/proc/self/status").stdout


@pytest.mark.parametrize(
    "path",
    ["/x", "/etc/passwd", "/usr/bin/env", "/run/troupe/egress/x", "/run/troupe/guest/init.py", "/root/x"],
)
def test_only_state_workspace_and_tmp_can_be_written(house: House, shared: str, path: str) -> None:
    assert run(house, shared, "sh", "-c", f"echo x >> {path}").status != 0


@pytest.mark.parametrize("folder", ["/state", "/workspace", "/tmp"])
def test_what_is_writable_is_writable(house: House, shared: str, folder: str) -> None:
    assert run(house, shared, "sh", "-c", f"echo x > {folder}/probe && rm {folder}/probe").status == 0


def test_there_is_no_network_but_the_brokers_socket(house: House, shared: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            "import socket, os\n"
            f"for where in (('127.0.0.1', {port}), ('192.0.2.1', 80), ('1.1.1.1', 80), ('169.254.169.254', 80)):\n"
            "    try:\n"
            "        with socket.create_connection(where, 2) as there:\n"
            "            print('reached', where)\n"
            "            there.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
            "            print('answered', there.recv(100))\n"
            "    except OSError: pass\n"
            "try: socket.getaddrinfo('example.org', 443); print('resolved')\n"
            "except OSError: pass\n"
            "print([n for _, n in socket.if_nameindex() if n != 'lo'])\n"
        )
        said = python(house, shared, code).stdout
    if (
        house.kernel is Isolation.KVM
    ):  # Docker's own network is there, and refuses whoever asks by closing or by a 403
        assert not [
            line
            for line in said.splitlines()
            if b"answered" in line and b"403" not in line and b"b''" not in line
        ]
    else:
        assert said == b"[]\n"


def test_the_host_and_other_agents_are_out_of_sight(
    house: House, shared: str, fresh: Fresh, tmp_path: Path
) -> None:
    other = house.started(fresh())
    run(house, other, "sh", "-c", "echo private > /state/secret; chmod 777 /state/secret")
    (tmp_path / "host-secret").write_text("private")
    places = [
        str(tmp_path / "host-secret"),
        str(house.paths.data),
        str(house.paths.state),
        "/state/secret",
        str(Path.home() / "x"),
    ]
    for place in places:
        assert run(house, shared, "ls", "-d", place).status != 0
    env = run(house, shared, "sh", "-c", "cat /proc/1/environ; env").stdout
    assert str(house.paths.data).encode() not in env
    assert run(house, shared, "sh", "-c", f"kill -0 {os.getpid()}").status != 0


def test_the_way_to_the_broker_carries_bytes_both_ways_and_ends_each(
    house: House, shared: str, echo_broker: None
) -> None:
    code = (
        "import socket\n"
        "s = socket.create_connection(('127.0.0.1', 3128), 5)\n"
        "data = bytes(range(256)) * 2000\n"
        "import threading\n"
        "threading.Thread(target=lambda: (s.sendall(data), s.shutdown(1))).start()\n"
        "got = b''\n"
        "while chunk := s.recv(65536): got += chunk\n"
        "print(got == data + b'bye')\n"
        "many = [socket.create_connection(('127.0.0.1', 3128), 5) for _ in range(50)]\n"
        "for n, c in enumerate(many): c.sendall(b'%d' % n)\n"
        "print(all(c.recv(9) == b'%d' % n for n, c in enumerate(many)))\n"
    )
    assert python(house, shared, code).stdout == b"True\nTrue\n"


def test_without_a_broker_the_answer_is_quick(house: House, shared: str) -> None:
    code = (
        "import socket, time; t = time.monotonic()\n"
        "s = socket.create_connection(('127.0.0.1', 3128), 5); s.sendall(b'GET http://a/ HTTP/1.1\\r\\n\\r\\n')\n"
        "print(s.recv(99).split()[1], time.monotonic() - t < 1)\n"
    )
    assert python(house, shared, code).stdout == b"b'502' True\n"


def test_the_first_process_reaps_what_others_leave(house: House, shared: str) -> None:
    run(house, shared, "sh", "-c", "for i in 1 2 3 4 5; do (sleep 0.05 &) ; done; sleep 0.5")
    seen = run(house, shared, "sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null").stdout
    assert b") Z " not in seen


# --- limits


def test_too_many_processes_fail_inside_and_hurt_nobody(house: House, shared: str, fresh: Fresh) -> None:
    binds(house, "processes")
    one = house.spare(shared, fresh)
    code = (
        "import os, time\nn = 0\n"
        "try:\n"
        "    while n < 300:\n"
        "        if os.fork() == 0: time.sleep(3); os._exit(0)\n"
        "        n += 1\n"
        "except OSError: pass\n"
        "print(n)\n"
    )
    done = python(house, one, code, deadline_s=60)
    assert 10 < int(done.stdout) < house.small.processes
    deadline = time.monotonic() + 20
    while run(house, one, "true").status != 0 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert run(house, one, "true").status == 0


def test_too_many_open_files_fail_inside(house: House, shared: str) -> None:
    binds(house, "open_files")
    code = "import os\ntry:\n    while True: n = os.open('/dev/null', 0)\nexcept OSError: print(n)\n"
    assert int(python(house, shared, code).stdout) < house.small.open_files


def test_the_disk_ends_where_its_size_says(house: House, shared: str, fresh: Fresh) -> None:
    binds(house, "storage")
    one = house.spare(shared, fresh)
    done = run(
        house,
        one,
        "sh",
        "-c",
        f"dd if=/dev/zero of=/state/big bs=1M count={house.small.storage_mib * 2 + 72}; ls -s /state/big",
        deadline_s=150,
    )
    assert b"No space left" in done.stderr
    assert house.driver.disk_used_mib(one) <= house.small.storage_mib + 1
    assert run(house, one, "rm", "/state/big").status == 0


def test_memory_past_the_limit_ends_the_sandbox_not_the_host(house: House, fresh: Fresh) -> None:
    binds(house, "memory")
    house.only(
        "capsule", why="it is the machine's; below the stand-in it is the capsule's, which is put to this"
    )
    one = house.started(fresh())
    run(house, one, "sh", "-c", "echo kept > /state/a; sync")
    code = "b = []\nwhile len(b) < 3000: b.append(bytearray(b'x' * (1 << 20)))\nprint('all of it')\n"
    try:
        assert b"all of it" not in python(house, one, code, deadline_s=60).stdout
    except SandboxGone:
        assert state(house, one) is not State.RUNNING
    house.driver.start(one)
    assert run(house, one, "cat", "/state/a").stdout == b"kept\n"


def test_cpu_time_is_bounded(house: House, fresh: Fresh) -> None:
    binds(house, "cpus")
    house.only("capsule", why="sbx tells of no process whose CPU time could be read")
    one = house.started(fresh())
    before, started = _cpu_s(house, one), time.monotonic()
    spin = "for i in 1 2 3 4; do (timeout 3 sh -c 'while :; do :; done') & done; wait"
    run(house, one, "sh", "-c", spin, deadline_s=30)
    used, wall = _cpu_s(house, one) - before, time.monotonic() - started
    assert 0.2 * wall < used < 1.25 * wall * house.small.cpus


def _cpu_s(house: House, sandbox_id: str) -> float:
    """Return the CPU time of a sandbox's processes, and of ours that ended: one engine's commands are these."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = 0
    for pid in house.driver.pids(sandbox_id):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(fields[index]) for index in (11, 12, 13, 14))
    return total / os.sysconf("SC_CLK_TCK") + ended.ru_utime + ended.ru_stime
