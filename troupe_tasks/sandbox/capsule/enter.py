"""Run one command in the namespaces of a running sandbox, with every restriction put on again.

Run by path (`python -I -S enter.py JSON`), so it imports only the standard library. It trusts nothing inside: it
joins the sandbox from without, and what it starts there loses its capabilities, the way to get any, and most of
the kernel before its program begins. The one that waits outside passes INT and TERM on and ends with its status.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pty
import resource
import select
import signal
import sys
import termios
import tty
from pathlib import Path
from typing import Any, NoReturn

_NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "cgroup")
_NS_GET_USERNS = 0xB701
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = (
    1,
    4,
    22,
    24,
    38,
)
_SECCOMP_MODE_FILTER = 2
_CAP_VERSION_3 = 0x20080522
_FAILED = 125

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _prctl(option: int, first: Any, second: Any = 0) -> None:
    zero = ctypes.c_ulong(0)
    wide = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in (first, second)]
    _checked(_libc.prctl(option, *wide, zero, zero), f"prctl {option}")


def start_ticks(pid: int) -> int:
    """Return when a process began, in ticks since boot: with it a number can't be mistaken for a later process."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])


def join(wanted: dict[str, Any]) -> None:
    """Enter the control groups and the namespaces; the next child is inside."""
    for group in wanted["groups"]:
        Path(group, "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    pid = wanted["pid"]
    handles = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in (*_NAMESPACES, "user")}
    if start_ticks(pid) != wanted["start_ticks"]:
        raise ProcessLookupError("the sandbox is not running")
    own = {kind: Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in _NAMESPACES}
    if os.geteuid() == 0:
        os.setgroups([])
    # Not dumpable: nobody inside may reach this interpreter's own file through /proc while it is among them.
    _prctl(_PR_SET_DUMPABLE, 0)
    # bubblewrap makes two user namespaces, one in the other: the outer owns the rest, the inner has uid 1000.
    owner = fcntl.ioctl(handles["mnt"], _NS_GET_USERNS)
    _checked(_libc.setns(owner, 0), "setns owner")
    for kind in _NAMESPACES:
        if os.fstat(handles[kind]).st_ino != own[kind]:
            _checked(_libc.setns(handles[kind], 0), f"setns {kind}")
    if os.fstat(owner).st_ino != os.fstat(handles["user"]).st_ino:
        _checked(_libc.setns(handles["user"], 0), "setns user")


def restrict(wanted: dict[str, Any]) -> None:
    """Give up everything that the sandbox's own first process gave up."""
    for kind, most in (
        (resource.RLIMIT_NOFILE, wanted["open_files"]), (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, wanted["processes"]),
    ):  # fmt: skip
        resource.setrlimit(kind, (most, most))
    os.umask(0o022)
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    os.setresgid(wanted["uid"], wanted["uid"], wanted["uid"])
    os.setresuid(wanted["uid"], wanted["uid"], wanted["uid"])
    _checked(_libc.capset((ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0), (ctypes.c_uint32 * 6)()), "capset")
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    code = wanted["seccomp"]
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program))


def inside(wanted: dict[str, Any], terminal: int | None) -> NoReturn:
    """Become the command, in the child."""
    try:
        if terminal is not None:
            os.login_tty(terminal)
        else:
            os.setsid()
        restrict(wanted)
        os.chdir(wanted["cwd"])
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(_FAILED)
    if wanted["report_fd"] is not None:
        os.write(wanted["report_fd"], b"began")
        os.close(wanted["report_fd"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    argv = wanted["argv"]
    try:
        os.execvpe(argv[0], argv, wanted["env"])
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127 if isinstance(error, FileNotFoundError | NotADirectoryError) else 126)


def relay(child: int, master: int) -> None:
    """Carry bytes between the operator's terminal and the one inside until the child is gone.

    A terminal of its own, because who holds a terminal may push input into it (TIOCSTI).
    """

    def resize(*_: object) -> None:
        fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))

    signal.signal(signal.SIGWINCH, resize)
    resize()
    before = termios.tcgetattr(0)
    tty.setraw(0)
    sources = [0, master]
    try:
        while master in sources:
            for ready in select.select(sources, [], [])[0]:
                try:
                    data = os.read(ready, 65536)
                except OSError:  # EIO: the last process that had the terminal inside is gone
                    data = b""
                if not data:
                    sources.remove(ready)
                _write(1 if ready == master else master, data)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGHUP)


def _write(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def main() -> int:
    """Join, start, wait."""
    wanted = json.loads(sys.argv[1])
    master, slave = pty.openpty() if wanted["tty"] else (None, None)
    if slave is not None:
        os.fchown(slave, *([wanted["host_uid"]] * 2 if os.geteuid() == 0 else [-1, -1]))
    try:
        wanted["seccomp"] = Path(wanted["seccomp"]).read_bytes()
        join(wanted)
    except OSError as error:
        print(f"cannot enter the sandbox: {error}", file=sys.stderr)
        return _FAILED
    blocked = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # until there is somebody to pass them on to
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        if master is not None:
            os.close(master)
        inside(wanted, slave)
    if slave is not None:
        os.close(slave)
    for number in blocked:
        signal.signal(number, lambda number, _frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    if master is not None:
        relay(child, master)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    os._exit(main())
