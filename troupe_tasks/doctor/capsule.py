"""Check what the capsule driver stands on: its programs, its isolation, and limits that bind."""

from __future__ import annotations

from typing import Final

from troupe_tasks.doctor.finding import Finding, Kind, Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.errors import TroupeError
from troupe_tasks.host import packages
from troupe_tasks.host.quota import groups, text_of
from troupe_tasks.text import line

_CONTROLLERS: Final = ("memory", "cpu", "pids")
_SUBIDS_LEAST: Final = 65536


def programs(machine: Machine) -> Finding:
    """Check for the packages that the capsule's and the image builder's programs come in.

    Every driver's images are built; what only the capsule needs stops no agent of another driver.
    """
    lacking = packages.missing(root=machine.root, as_root=machine.is_root)
    if not lacking:
        return _finding("capsule programs", Level.OK, "all installed")
    needed = packages.missing(root=machine.root, as_root=machine.is_root, driver=machine.driver)
    detail = "; ".join(f"{package.name} is missing: it {package.use}" for package in needed or lacking)
    if not needed:
        detail += f"; {machine.driver} does without"
    command = packages.install_command(needed or lacking, as_root=machine.is_root)
    return _finding("capsule programs", Level.ACTION if needed else Level.NOTE, detail, f"`{command}`")


def gvisor(machine: Machine) -> Finding:
    """Check that gVisor runs a sandbox here; without it agents are isolated by namespaces."""
    weaker = "agents get namespaces and a seccomp filter, on the machine's own kernel"
    try:
        found = machine.gvisor(machine.paths)
    except TroupeError as error:
        return _finding("gVisor", Level.NOTE, f"{line(str(error))}; {weaker}", line(error.hint))
    if found is None:
        return _finding(
            "gVisor",
            Level.NOTE,
            f"there is no runsc yet; without it {weaker}",
            "`create` fetches Debian 13's.",
        )
    return _finding("gVisor", Level.OK, f"{line(found)} runs sandboxes")


def user_namespaces(machine: Machine) -> Finding:
    """Check that an ordinary user may make user namespaces, by making one."""
    name = "user namespaces"
    if machine.is_root:
        return _finding(name, Level.OK, "not needed: you are root")
    argv = ["unshare", "--user", "--map-root-user", "true"]
    if machine.which("bwrap"):  # a system may allow them by program, so the one that matters is tried
        argv = ["bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"]
    try:
        done = machine.run(argv)
    except TroupeError as error:
        return _finding(name, Level.ACTION, str(error), f"`{machine.install('bubblewrap', 'util-linux')}`")
    if done.status == 0:
        return _finding(name, Level.OK, f"{argv[0]} made one")
    return _finding(
        name, Level.ACTION, *_namespace_remedy(machine, f"{argv[0]}: {line(done.stderr.strip())}")
    )


def _namespace_remedy(machine: Machine, seen: str) -> tuple[str, str]:
    if machine.number("/proc/sys/user/max_user_namespaces") == 0:
        return "the machine allows none (user.max_user_namespaces is 0)", _sysctl(
            "user.max_user_namespaces", 15000
        )
    if machine.number("/proc/sys/kernel/unprivileged_userns_clone") == 0:
        key = "kernel.unprivileged_userns_clone"
        return f"they are kept for root ({key} is 0)", _sysctl(key, 1)
    key = "kernel.apparmor_restrict_unprivileged_userns"
    if machine.number(f"/proc/sys/{key.replace('.', '/')}") == 1:
        profile = "profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }"
        return (
            f"AppArmor keeps them from programs without a profile ({key} is 1, as on Ubuntu 24.04)",
            f"Give bwrap a profile: `printf 'abi <abi/4.0>,\\n{profile}\\n' | sudo tee /etc/apparmor.d/bwrap"
            " && sudo apparmor_parser -r /etc/apparmor.d/bwrap`. Or lift the rule for every program: "
            + _sysctl(key, 0),
        )
    return seen, "Inside a container, its manager must allow user namespaces; else run troupe as root."


def _sysctl(key: str, value: int) -> str:
    file = "/etc/sysctl.d/60-troupe.conf"
    return f"`echo '{key} = {value}' | sudo tee {file} && sudo sysctl -p {file}`"


def subordinate_ids(machine: Machine) -> Finding:
    """Check that an ordinary user has user and group IDs to give to what an image is built of."""
    name = "subordinate IDs"
    if machine.is_root:
        return _finding(name, Level.OK, "not needed: you are root")
    lacking = [file for file in ("/etc/subuid", "/etc/subgid") if _subids(machine, file) < _SUBIDS_LEAST]
    if not lacking:
        return _finding(name, Level.OK, f"at least {_SUBIDS_LEAST} users and groups")
    flags = {"/etc/subuid": "--add-subuids", "/etc/subgid": "--add-subgids"}
    added = " ".join(f"{flags[file]} {_free_range(machine, file)}" for file in lacking)
    return _finding(
        name, Level.ACTION, f"{' and '.join(lacking)} give you fewer than {_SUBIDS_LEAST}",
        f"`sudo usermod {added} {machine.user}`",
    )  # fmt: skip


def _ranges(machine: Machine, file: str) -> list[tuple[str, int, int]]:
    rows = [row.split(":") for row in machine.text(file).splitlines()]
    return [
        (row[0], int(row[1]), int(row[2]))
        for row in rows
        if len(row) == 3 and all(field.isascii() and field.isdigit() and len(field) < 12 for field in row[1:])
    ]


def _subids(machine: Machine, file: str) -> int:
    mine = (machine.user, str(machine.uid))
    return max((count for owner, _, count in _ranges(machine, file) if owner in mine), default=0)


def _free_range(machine: Machine, file: str) -> str:
    first = max((start + count for _, start, count in _ranges(machine, file)), default=100000)
    return f"{first}-{first + _SUBIDS_LEAST - 1}"


def limits(machine: Machine) -> Finding:
    """Tell which of memory, CPU and process limits will not bind on this machine."""
    loose = [controller for controller in _CONTROLLERS if not _binds(machine, controller)]
    if not loose:
        return _finding("memory, CPU and process limits", Level.OK, "bind, by control groups")
    todo = (
        "Run troupe as root, or in a scope of its own: `systemd-run --user --scope -p Delegate=yes troupe …`."
    )
    if machine.is_root:
        todo = "In a container, its manager must pass writable control groups in."
    return _finding(
        "memory, CPU and process limits", Level.NOTE,
        f"no control group for {', '.join(loose)} can be made here: an agent's limit on it does not bind"
        " (what its sandbox enforces by itself still does)", todo,
    )  # fmt: skip


def _binds(machine: Machine, controller: str) -> bool:
    # On version 2 a group may be made further up, where the machine's init has not shared the controller out yet.
    for group in groups(controller, root=machine.root):
        if not machine.writable(group.folder):
            return False
        if group.version == 1 or controller in text_of(group.folder / "cgroup.controllers").split():
            return True
    return False


def disk_limit(machine: Machine) -> Finding:
    """Tell whether a limit on an agent's disk will bind on this machine."""
    name = "disk limit"
    if not machine.is_root:
        return _finding(name, Level.NOTE, "does not bind: only root can mount a disk for each agent",
                        "Run troupe as root where agents must not fill the disk.")  # fmt: skip
    if not machine.has("/dev/loop-control"):
        return _finding(name, Level.NOTE, "does not bind: there are no loop devices",
                        "`modprobe loop`; in a container, its manager must pass them in.")  # fmt: skip
    return _finding(name, Level.OK, "binds: each agent's disk is a filesystem of its own")


def _finding(requirement: str, verdict: Level, detail: str, todo: str = "") -> Finding:
    return Finding(kind=Kind.SOFTWARE, requirement=requirement, verdict=verdict, detail=detail, todo=todo)
