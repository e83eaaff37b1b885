"""The facts and powers of a machine that the checks ask for; tests build machines that do not exist."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from troupe_tasks import resources, stamp
from troupe_tasks.host import kvm, kvm_probe
from troupe_tasks.host.cpu import usable_threads
from troupe_tasks.host.disks import free_mib
from troupe_tasks.host.memory import total_mib
from troupe_tasks.host.quota import number_of, text_of
from troupe_tasks.paths import Paths
from troupe_tasks.process import SYSTEM_PATH, Done, run
from troupe_tasks.sandbox.sbx import signin
from troupe_tasks.sandbox.sbx.signin import SignIn
from troupe_tasks.stamp import Stamp

TOOL_DEADLINE_S = 3.0
_RELEASE_DEADLINE_S = 3.0


def _run(argv: Sequence[str], *, deadline_s: float = TOOL_DEADLINE_S) -> Done:
    from troupe_tasks.sandbox.sbx import calls

    # What another environment finds is another sbx's: its settings, its daemon.
    env = calls.environment() if Path(argv[0]).name == "sbx" else None
    return run(argv, deadline_s=deadline_s, cap_bytes=65536, ok=None, env=env)


def _which(program: str) -> str | None:
    return shutil.which(program, path=SYSTEM_PATH)


def _gvisor(paths: Paths) -> str | None:
    """Return the runsc that works here, or None where there is none; raise NotReady when it does not work."""
    from troupe_tasks.sandbox.capsule import gvisor

    binary = gvisor.find(paths)
    if binary is None:
        return None
    gvisor.Gvisor(paths).check()
    return str(binary)


def _sbx() -> str | None:
    """Return Docker's sbx, or None where there is none."""
    from troupe_tasks.sandbox.sbx import calls

    found = calls.find()
    return None if found is None else str(found)


def _newest(address: str) -> str:
    from troupe_tasks import releases

    return releases.newest(address, deadline_s=_RELEASE_DEADLINE_S)


def _kvm_group() -> str:
    """Return the group that may open /dev/kvm, or nothing where none may."""
    import grp

    try:
        status = Path(kvm_probe.DEVICE).stat()
        return grp.getgrgid(status.st_gid).gr_name if status.st_mode & 0o060 == 0o060 else ""
    except (OSError, KeyError):
        return ""


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK)


@dataclass(frozen=True)
class Machine:
    """One machine as one user sees it. Files are read under `root`; the callables are its powers."""

    paths: Paths
    arch: str
    uid: int
    user: str
    groups_now: frozenset[str]
    groups_listed: frozenset[str]
    checkout: bool
    driver: str = "capsule"
    root: Path = Path("/")
    affinity: int | None = None
    which: Callable[[str], str | None] = _which
    run: Callable[[Sequence[str]], Done] = _run
    kvm: Callable[[], kvm.Kvm] = kvm.check
    kvm_group: Callable[[], str] = _kvm_group
    gvisor: Callable[[Paths], str | None] = _gvisor
    sbx: Callable[[], str | None] = _sbx
    signed_in: Callable[[], SignIn] = signin.read
    stamp: Callable[[], Stamp | None] = stamp.read
    newest: Callable[[str], str] = _newest
    free_mib: Callable[[Path], int | None] = free_mib
    writable: Callable[[Path], bool] = _writable

    @classmethod
    def here(cls, paths: Paths, *, patience: int = 1) -> Machine:
        """Return this machine, as the user who runs troupe; its tools have their deadline times patience."""
        import grp
        import pwd

        uid = os.getuid()
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = str(uid)
        listed = frozenset(group.gr_name for group in grp.getgrall() if user in group.gr_mem)
        held = {os.getegid(), *os.getgroups()}
        now = frozenset(group.gr_name for group in grp.getgrall() if group.gr_gid in held)
        checkout = resources.checkout() is not None
        tools = partial(_run, deadline_s=TOOL_DEADLINE_S * patience)
        return cls(paths, platform.machine(), uid, user, now, listed | now, checkout, run=tools)

    @property
    def is_root(self) -> bool:
        """Return whether troupe runs as root."""
        return self.uid == 0

    @property
    def threads(self) -> int | None:
        """Return the CPU threads that this process may use."""
        return usable_threads(root=self.root, affinity=self.affinity)

    @property
    def memory_mib(self) -> int | None:
        """Return the memory that this process may use."""
        return total_mib(root=self.root)

    def text(self, path: str) -> str:
        """Return a small file of the machine's, or nothing."""
        return text_of(self.root / path.lstrip("/"))

    def number(self, path: str) -> int | None:
        """Return the number that a file of the machine's holds, or None."""
        return number_of(self.root / path.lstrip("/"))

    def has(self, path: str) -> bool:
        """Return whether a path is there."""
        return (self.root / path.lstrip("/")).exists()

    def sudo(self, command: str) -> str:
        """Return a command as this user must type it to have root's rights."""
        return command if self.is_root else f"sudo {command}"

    def install(self, *packages: str) -> str:
        """Return the command that installs Debian or Ubuntu packages."""
        return self.sudo(f"apt-get install --no-install-recommends {' '.join(packages)}")
