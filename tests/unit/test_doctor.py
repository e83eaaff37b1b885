"""What the doctor says about machines of every kind: one table, one machine a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from troupe_tasks.doctor import capsule, docker, hardware, release, systemd
from troupe_tasks.doctor.finding import Finding, Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.errors import NotReady, ReleaseFailed, ToolMissing, ToolTimeout
from troupe_tasks.host.kvm import Kvm, KvmState
from troupe_tasks.paths import Paths
from troupe_tasks.process import Done
from troupe_tasks.sandbox.sbx import calls
from troupe_tasks.sandbox.sbx.signin import SignIn, Standing
from troupe_tasks.stamp import Stamp

PROGRAMS = ("mmdebstrap", "bwrap", "mkfs.ext4", "losetup", "unshare", "setpriv", "newuidmap", "newgidmap")
FILES = {
    "usr/share/containers/seccomp.json": "{}",
    "usr/lib/x86_64-linux-gnu/libseccomp.so.2": "",
    "usr/share/keyrings/debian-archive-keyring.gpg": "",
    "etc/ssl/certs/ca-certificates.crt": "",
    "proc/meminfo": "MemTotal:       67108864 kB\n",
    "proc/cpuinfo": "flags : fpu vmx sse2\n",
    "proc/self/cgroup": "0::/own\n",
    "proc/self/mountinfo": "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n",
    "sys/fs/cgroup/own/cgroup.controllers": "cpu memory pids\n",
    "etc/subuid": "jo:100000:65536\n",
    "etc/subgid": "jo:100000:65536\n",
    "dev/loop-control": "",
    "run/systemd/system/a": "",
    "var/lib/systemd/linger/jo": "",
}
ANSWERS = {
    "systemd-creds --version": (0, "systemd 259 (259.1-1)"),
    "systemctl --version": (0, "systemd 259 (259.1-1)\n+PAM"),
    "systemd-analyze has-tpm2": (0, "yes"),
    "bwrap --unshare-user --ro-bind / / true": (0, ""),
}


SBX = "/usr/bin/sbx version --json"
STATUS = "/usr/bin/sbx daemon status --json"
FACTS = "ActiveState,UnitFileState,StateChangeTimestamp,Result,MainPID,NeedDaemonReload"
SHOWN = f"systemctl show --property={FACTS} -- sbx-daemon.service"
OURS = {"driver": "sbx", "sbx": lambda: "/usr/bin/sbx"}

Answers = Mapping[str, tuple[int, str] | Exception]


def answering(answers: Answers) -> Callable[[Sequence[str]], Done]:
    def run(argv: Sequence[str]) -> Done:
        answer = answers.get(" ".join(argv), ToolMissing(f"the program {argv[0]} is not installed"))
        if isinstance(answer, Exception):
            raise answer
        return Done(answer[0], answer[1].encode(), answer[1].encode())

    return run


def says_version(text: str) -> Callable[[Sequence[str]], Done]:
    return answering({SBX: (0, text)})


@pytest.fixture
def healthy(tmp_path: Path) -> Machine:
    """Return a machine on which an ordinary user has everything."""
    root = tmp_path / "root"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "usr/bin").mkdir()
    for program in PROGRAMS:
        (root / "usr/bin" / program).touch(mode=0o755)
    return Machine(
        paths=Paths(tmp_path / "data", tmp_path / "config", tmp_path / "state"),
        arch="x86_64", uid=1000, user="jo", groups_now=frozenset({"jo"}), groups_listed=frozenset({"jo"}),
        checkout=True, root=root, affinity=16,
        which=lambda program: f"/usr/bin/{program}" if program in {"bwrap", "sudo"} else None,
        run=answering(ANSWERS),
        kvm=lambda: Kvm(KvmState.WORKS, "a guest ran"),
        kvm_group=lambda: "kvm",
        gvisor=lambda _: "/usr/bin/runsc",
        sbx=lambda: None,
        signed_in=lambda: SignIn(Standing.IN, "jo"),
        free_mib=lambda _: 1 << 20,
        writable=lambda _: True,
    )  # fmt: skip


def kvm(state: KvmState) -> Callable[[], Kvm]:
    return lambda: Kvm(state, f"kvm is {state.value}")


def changed(answers: Answers) -> Callable[[Sequence[str]], Done]:
    return answering({**ANSWERS, **answers})


def answered(program: str, status: int, text: str) -> Callable[[Sequence[str]], Done]:
    return changed({program: (status, text)})


def broken_gvisor(_: Paths) -> str | None:
    raise NotReady("runsc does not work", cause="ls failed \x1b[2J", hint="Remove it.")


def stamped(address: str = "https://troupe.example") -> Stamp:
    return Stamp(version="1.9.0", commit="0123456789ab", address=address)


def unreachable(address: str) -> str:
    raise ReleaseFailed(f"{address} can't be reached", cause="odd \x1b")


REFUSED = answered("bwrap --unshare-user --ro-bind / / true", 1, "bwrap: setting up uid map: \x1b[31mdenied")
OLD = answered("systemd-creds --version", 0, "systemd 252 (252.38)")
ROOT = {"uid": 0, "user": "root"}
Row = tuple[str, Callable[[Machine], Finding], dict[str, object], dict[str, str | None], Level, str, str]
TABLE: list[Row] = [
    # name, check, changed facts, changed files (None: gone), verdict, in the detail, in what to do
    ("an x86_64 CPU", hardware.cpu, {}, {}, Level.OK, "x86_64", ""),
    ("an aarch64 CPU", hardware.cpu, {"arch": "aarch64"}, {}, Level.NOTE, "untested", ""),
    ("another CPU", hardware.cpu, {"arch": "riscv64"}, {}, Level.FAIL, "riscv64", "x86_64"),
    ("KVM works", hardware.virtualization, {}, {}, Level.OK, "a guest ran", ""),
    ("KVM on aarch64", hardware.virtualization, {"arch": "aarch64"}, {}, Level.NOTE, "untested", ""),
    ("KVM broken", hardware.virtualization,
     {"kvm": kvm(KvmState.BROKEN)}, {}, Level.NOTE, "weaker", "nested"),
    ("KVM broken for the vm driver", hardware.virtualization,
     {"kvm": kvm(KvmState.BROKEN), "driver": "vm"}, {}, Level.FAIL, "kvm is broken", "nested"),
    ("KVM busy", hardware.virtualization,
     {"kvm": kvm(KvmState.BUSY)}, {}, Level.NOTE, "busy", "Stop the other"),
    ("KVM denied", hardware.virtualization,
     {"kvm": kvm(KvmState.DENIED)}, {}, Level.NOTE, "denied", "sudo usermod -aG kvm jo"),
    ("KVM denied, the group is new", hardware.virtualization,
     {"kvm": kvm(KvmState.DENIED), "groups_listed": frozenset({"kvm"})}, {},
     Level.NOTE, "denied", "log out and in"),
    ("KVM denied to its group", hardware.virtualization,
     {"kvm": kvm(KvmState.DENIED), "groups_now": frozenset({"kvm"})}, {},
     Level.NOTE, "denied", "device rules"),
    ("KVM of no group", hardware.virtualization,
     {"kvm": kvm(KvmState.DENIED), "kvm_group": lambda: ""}, {},
     Level.NOTE, "denied", "sudo chgrp kvm /dev/kvm"),
    ("no KVM on a CPU that can", hardware.virtualization,
     {"kvm": kvm(KvmState.ABSENT)}, {}, Level.NOTE, "absent", "modprobe kvm_intel"),
    ("no KVM on an AMD CPU that can", hardware.virtualization,
     {"kvm": kvm(KvmState.ABSENT)}, {"proc/cpuinfo": "flags : svm"},
     Level.NOTE, "absent", "modprobe kvm_amd"),
    ("no KVM on a CPU that can't", hardware.virtualization,
     {"kvm": kvm(KvmState.ABSENT)}, {"proc/cpuinfo": "flags : fpu"}, Level.NOTE, "absent", "firmware"),
    ("room", hardware.room, {}, {}, Level.OK, "fit after the reserves", ""),
    ("too few CPUs", hardware.room, {"affinity": 2}, {}, Level.NOTE, "2 threads", "--cpu"),
    ("too little memory", hardware.room,
     {}, {"proc/meminfo": "MemTotal: 8388608 kB\n"},
     Level.NOTE, "more than this machine has (8 GiB)", "--memory"),
    ("too little disk", hardware.room,
     {"free_mib": lambda _: 10240}, {}, Level.NOTE, "9 GiB available", "--storage"),
    ("figures that can't be read", hardware.room,
     {"free_mib": lambda _: None}, {"proc/meminfo": None}, Level.NOTE, "was not checked", ""),
    ("a TPM", systemd.key_tier, {}, {}, Level.OK, "TPM", ""),
    ("a TPM asked about the way of 256", systemd.key_tier,
     {"run": changed({"systemd-creds --version": (0, "systemd 256 (256.1)"), "systemd-creds has-tpm2": (0, "yes"),
                      "systemd-analyze has-tpm2": (1, "unknown")})}, {},
     Level.OK, "TPM", ""),
    ("a TPM, and another init", systemd.key_tier,
     {}, {"run/systemd/system/a": None}, Level.NOTE, "not the init", "TPM 2.0"),
    ("a partial TPM", systemd.key_tier,
     {"run": answered("systemd-analyze has-tpm2", 1, "partial")}, {}, Level.NOTE, "host key", "TPM 2.0"),
    ("an old systemd", systemd.key_tier, {"run": OLD}, {}, Level.NOTE, "systemd 252 is older", "TPM 2.0"),
    ("no systemd-creds", systemd.key_tier,
     {"run": answering({})}, {}, Level.NOTE, "no systemd-creds", "TPM 2.0"),
    ("systemd-creds says nonsense", systemd.key_tier,
     {"run": answered("systemd-creds --version", 0, "hello")}, {}, Level.NOTE, "file", "TPM 2.0"),
    ("systemd-creds hangs", systemd.key_tier,
     {"run": changed({"systemd-creds --version": ToolTimeout("hangs")})}, {}, Level.NOTE, "file", "TPM 2.0"),
    ("systemd is the init", systemd.init, {}, {}, Level.OK, "systemd 259", ""),
    ("a manager that ends with the login", systemd.init,
     {}, {"var/lib/systemd/linger/jo": None}, Level.NOTE, "a supervisor runs", "loginctl enable-linger"),
    ("root's manager stays", systemd.init, ROOT, {"var/lib/systemd/linger/jo": None}, Level.OK, "systemd 259", ""),
    ("an older systemd is the init", systemd.init,
     {"run": answered("systemctl --version", 0, "systemd 257 (257.13)")}, {}, Level.NOTE, "257 is older", ""),
    ("systemd does not answer", systemd.init, {"run": answering({})}, {}, Level.NOTE, "does not tell", ""),
    ("another init", systemd.init,
     {}, {"run/systemd/system/a": None}, Level.NOTE, "supervisor", "start --all"),
    ("another init, where sbx is the driver", systemd.init,
     OURS, {"run/systemd/system/a": None}, Level.ACTION, "sandbox daemon", "config set driver capsule"),
    ("sudo", systemd.sudo, {}, {}, Level.OK, "installed", ""),
    ("root needs no sudo", systemd.sudo, {**ROOT, "which": lambda _: None}, {}, Level.OK, "root", ""),
    ("no sudo", systemd.sudo,
     {"which": lambda _: None}, {}, Level.NOTE, "take root", "apt-get install sudo"),
    ("no sudo, and the unit is to come", systemd.sudo,
     {**OURS, "which": lambda _: None, "run": changed({SHOWN: (0, ""), STATUS: (0, '{"status": "stopped"}')})}, {},
     Level.ACTION, "daemon's unit", "apt-get install sudo"),
    ("no sudo, and sbx is to come", systemd.sudo,
     {"driver": "sbx", "which": lambda _: None}, {}, Level.ACTION, "daemon's unit", "apt-get install sudo"),
    ("no sudo, and there can be no unit", systemd.sudo,
     {**OURS, "which": lambda _: None, "signed_in": lambda: SignIn(Standing.KEYRING)}, {},
     Level.NOTE, "take root", "apt-get install sudo"),
    ("root installs the unit without sudo", systemd.sudo,
     {**ROOT, **OURS, "which": lambda _: None}, {}, Level.OK, "root", ""),
    ("all programs", capsule.programs, {}, {}, Level.OK, "all installed", ""),
    ("no bwrap", capsule.programs,
     {}, {"usr/bin/bwrap": None}, Level.ACTION, "bubblewrap is missing", "sudo apt-get install"),
    ("no bwrap, as root", capsule.programs,
     ROOT, {"usr/bin/bwrap": None}, Level.ACTION, "bubblewrap is missing", "`apt-get update"),
    ("no bwrap, which builds sbx's images too", capsule.programs,
     OURS, {"usr/bin/bwrap": None, "usr/bin/mkfs.ext4": None},
     Level.ACTION, "bubblewrap is missing: it", "bubblewrap`"),
    ("what only the capsule needs, beside sbx", capsule.programs,
     OURS, {"usr/bin/mkfs.ext4": None}, Level.NOTE, "e2fsprogs is missing", "e2fsprogs"),
    ("no mkfs.ext4", capsule.programs, {}, {"usr/bin/mkfs.ext4": None}, Level.ACTION, "e2fsprogs is", "e2fsprogs"),
    ("no seccomp profile", capsule.programs,
     {}, {"usr/share/containers/seccomp.json": None},
     Level.ACTION, "filter", "golang-github-containers-common"),
    ("root needs no uidmap", capsule.programs, ROOT, {"usr/bin/newuidmap": None}, Level.OK, "all", ""),
    ("no uidmap", capsule.programs, {}, {"usr/bin/newuidmap": None}, Level.ACTION, "uidmap", "uidmap"),
    ("gVisor works", capsule.gvisor, {}, {}, Level.OK, "/usr/bin/runsc runs", ""),
    ("no gVisor", capsule.gvisor, {"gvisor": lambda _: None}, {}, Level.NOTE, "no runsc yet", "fetches"),
    ("gVisor does not work", capsule.gvisor,
     {"gvisor": broken_gvisor}, {}, Level.NOTE, r"ls failed \x1b[2J); agents", "Remove it"),
    ("user namespaces work", capsule.user_namespaces, {}, {}, Level.OK, "bwrap made one", ""),
    ("they work whatever the settings say", capsule.user_namespaces,
     {}, {"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, Level.OK, "bwrap made one", ""),
    ("root needs none", capsule.user_namespaces, {**ROOT, "run": REFUSED}, {}, Level.OK, "root", ""),
    ("none are allowed", capsule.user_namespaces, {"run": REFUSED},
     {"proc/sys/user/max_user_namespaces": "0\n", "proc/sys/kernel/unprivileged_userns_clone": "0\n"},
     Level.ACTION, "max_user_namespaces is 0", "user.max_user_namespaces = 15000"),
    ("they are root's", capsule.user_namespaces, {"run": REFUSED},
     {"proc/sys/user/max_user_namespaces": "9\n", "proc/sys/kernel/unprivileged_userns_clone": "0\n"},
     Level.ACTION, "kept for root", "kernel.unprivileged_userns_clone = 1"),
    ("AppArmor keeps them", capsule.user_namespaces, {"run": REFUSED},
     {"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"},
     Level.ACTION, "AppArmor", "apparmor_parser -r /etc/apparmor.d/bwrap"),
    ("they fail for another reason", capsule.user_namespaces, {"run": REFUSED}, {},
     Level.ACTION, r"uid map: \x1b[31mdenied", "container"),
    ("nothing to try them with", capsule.user_namespaces,
     {"which": lambda _: None, "run": answering({})}, {},
     Level.ACTION, "unshare is not installed", "bubblewrap"),
    ("subordinate IDs", capsule.subordinate_ids, {}, {}, Level.OK, "65536", ""),
    ("root needs no IDs", capsule.subordinate_ids, ROOT, {"etc/subuid": None}, Level.OK, "root", ""),
    ("IDs by number", capsule.subordinate_ids, {}, {"etc/subuid": "1000:5:65536\n"}, Level.OK, "65536", ""),
    ("another user's IDs alone", capsule.subordinate_ids, {}, {"etc/subuid": "al:100000:65536\nodd\n"},
     Level.ACTION, "/etc/subuid give", "sudo usermod --add-subuids 165536-231071 jo"),
    ("no IDs", capsule.subordinate_ids, {}, {"etc/subuid": None, "etc/subgid": ""}, Level.ACTION,
     "/etc/subuid and /etc/subgid", "--add-subuids 100000-165535 --add-subgids 100000-165535 jo"),
    ("limits bind", capsule.limits, {}, {}, Level.OK, "bind", ""),
    ("limits without delegation", capsule.limits,
     {"writable": lambda _: False}, {}, Level.NOTE, "memory, cpu, pids", "systemd-run"),
    ("one controller is not there", capsule.limits,
     {"writable": lambda folder: folder.name == "own"}, {"sys/fs/cgroup/own/cgroup.controllers": "memory pids\n"},
     Level.NOTE, "for cpu can be", "Delegate=yes"),
    ("one is not shared out to us, but a group can be made further up", capsule.limits,
     ROOT, {"sys/fs/cgroup/own/cgroup.controllers": "memory pids\n"}, Level.OK, "bind", ""),
    ("no groups at all, as root", capsule.limits,
     ROOT, {"proc/self/mountinfo": None}, Level.NOTE, "memory, cpu, pids", "container"),
    ("a disk limit as root", capsule.disk_limit, ROOT, {}, Level.OK, "binds", ""),
    ("a disk limit without loop devices", capsule.disk_limit,
     ROOT, {"dev/loop-control": None}, Level.NOTE, "does not bind", "loop"),
    ("a disk limit as an ordinary user", capsule.disk_limit, {}, {}, Level.NOTE, "does not bind", "as root"),
    ("sbx", docker.program, {**OURS, "run": says_version('{"client": {"version": "v0.48.1"}}')}, {},
     Level.OK, "new enough", ""),
    ("no sbx, which is the driver", docker.program, {"driver": "sbx"}, {}, Level.ACTION, "not installed", "docker-sbx"),
    ("an old sbx", docker.program, {**OURS, "run": says_version('{"client": {"version": "v0.45.1"}}')}, {},
     Level.ACTION, "needs 0.48", "newest"),
    ("an old sbx beside the capsule", docker.program,
     {**OURS, "driver": "capsule", "run": says_version('{"client": {"version": "v0.45.1"}}')}, {},
     Level.NOTE, "needs 0.48", "newest"),
    ("another daemon", docker.program,
     {**OURS, "run": says_version('{"client": {"version": "v0.49.0"}, "server": {"version": "v0.48.0"}}')}, {},
     Level.ACTION, "its daemon is v0.48.0", "daemon restart"),
    ("an sbx that says nothing of use", docker.program, {**OURS, "run": says_version("hello \x1b[1m")}, {},
     Level.ACTION, "no answer that reads", "daemon restart"),
    ("an sbx that hangs", docker.program, {**OURS, "run": answering({SBX: ToolTimeout("did not end")})}, {},
     Level.ACTION, "did not end", "doctor"),
    ("signed in", docker.sign_in, OURS, {}, Level.OK, "signed in as jo", ""),
    ("signed out", docker.sign_in, {**OURS, "signed_in": lambda: SignIn(Standing.OUT)}, {},
     Level.ACTION, "not signed in", "sbx login"),
    ("a damaged sign-in", docker.sign_in, {**OURS, "signed_in": lambda: SignIn(Standing.DAMAGED, "jo", "is \x1b")}, {},
     Level.ACTION, "damaged: is \\x1b", "sbx login"),
    ("a sign-in in a keyring", docker.sign_in, {**OURS, "signed_in": lambda: SignIn(Standing.KEYRING)}, {},
     Level.ACTION, "which no gateway's unit can open", "over ssh"),
    ("a sign-in in a keyring, and no units", docker.sign_in,
     {**OURS, "signed_in": lambda: SignIn(Standing.KEYRING)}, {"run/systemd/system/a": None},
     Level.NOTE, "keyring", "sbx ls"),
    ("a checkout", release.current, {}, {}, Level.OK, "checkout", ""),
    ("a troupe of no release", release.current, {"checkout": False}, {}, Level.NOTE, "no release address", ""),
    ("a build without an address", release.current,
     {"checkout": False, "stamp": lambda: stamped("")}, {}, Level.NOTE, "no release address", ""),
    ("the latest release", release.current,
     {"checkout": False, "stamp": stamped, "newest": lambda _: "1.9.0"}, {}, Level.OK, "the latest", ""),
    ("a newer release", release.current,
     {"checkout": False, "stamp": stamped, "newest": lambda _: "1.10.0"}, {},
     Level.NOTE, "1.9.0; 1.10.0 is out", "troupe update"),
    ("no network", release.current,
     {"checkout": False, "stamp": stamped, "newest": unreachable}, {},
     Level.NOTE, r"can't be reached (odd \x1b)", ""),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_a_machine_gets_its_verdict(
    healthy: Machine,
    row: tuple[str, Callable[[Machine], Finding], dict[str, object], dict[str, str | None], Level, str, str],
) -> None:
    _, check, facts, files, verdict, detail, todo = row
    for name, text in files.items():
        path = healthy.root / name
        if text is None:
            path.unlink()
            if name.startswith("run/systemd"):
                path.parent.rmdir()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    finding = check(dataclasses.replace(healthy, **facts))  # type: ignore[arg-type]
    assert finding.verdict is verdict
    assert detail in finding.detail
    assert todo in finding.todo
    assert finding.detail.isprintable()
    assert finding.todo.isprintable() or "\\n" in finding.todo
    assert finding.todo or not finding.stops, "who must act is told how"


def test_sbx_is_asked_in_the_environment_of_every_other_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("sbx", "another")
    for name in names:
        (tmp_path / name).write_text("#!/bin/sh\nenv\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", "/srv/cache")
    run = Machine.here(Paths.from_env()).run
    said = [set(run([str(tmp_path / name)]).stdout.decode().splitlines()) for name in names]
    assert {f"{name}={value}" for name, value in calls.environment().items()} <= said[0]
    assert {"XDG_CACHE_HOME=/srv/cache", "SBX_NO_TELEMETRY=1"} <= said[0]
    assert "XDG_CACHE_HOME=/srv/cache" not in said[1]


def test_this_machine_has_facts() -> None:
    machine = Machine.here(Paths.from_env())
    assert machine.user
    assert machine.threads
    assert machine.groups_now <= machine.groups_listed
