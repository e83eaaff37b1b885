"""The words of commands inside a sandbox: each runs through guest/held.py, but what troupe puts there as root."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from troupe_tasks import durable
from troupe_tasks.resources import guest_dir
from troupe_tasks.sandbox.protocol import EGRESS_DIR, GUEST_DIR
from troupe_tasks.sandbox.sbx import answers, calls, tunnel
from troupe_tasks.sandbox.sbx.saved import Saved

PYTHON = ("/usr/bin/python3", "-I", "-S")
REAP = (*PYTHON, f"{GUEST_DIR}/reap.py")
WAY_OUT = "way-out"
GATEWAY = "gateway"
GATEWAY_PID = "/tmp/.troupe-gateway"
_BASE_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/state", "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
_CAP = 1 << 20
_WORD = 32_000  # letters, of up to 4 bytes: Linux takes no argument of more than 131,071
_HALVES = re.compile("[\ud800-\udfff]")
# Runs inside as the agent's user, whose processes these are; PID 1 is sbx's own.
END_ALL = """\
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def others():
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and int(name) not in (1, os.getpid()) and os.stat("/proc/" + name).st_uid == os.getuid():
                return True
        except OSError:
            continue
    return False
try:
    os.kill(-1, signal.SIGTERM)
except OSError:
    pass
end = time.monotonic() + float(sys.argv[1])
while others() and time.monotonic() < end:
    time.sleep(0.02)
"""
# Runs as root inside. The identity is the last to be written: without it nothing of ours runs.
_FURNISH = """\
import json, os, shutil, sys, time
told = json.load(sys.stdin)
for path, text in told["files"].items():
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path + ".new", 0o644)
    os.replace(path + ".new", path)
try:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
except OSError:
    boot = ""
place = told["guest"] + "/identity"
os.makedirs(told["guest"], exist_ok=True)
mine = told["identity"] + " " + boot
try:
    with open(place, encoding="utf-8") as file:
        known = file.read() == mine
except OSError:
    known = False
if not known:  # a start of the machine: nothing of the agent's runs yet, and what it left in /tmp goes
    os.chmod("/tmp", 0o1777)
    for entry in os.scandir("/tmp"):
        if entry.stat(follow_symlinks=False).st_uid == 0:
            continue  # the machine's own
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
            continue
        try:
            os.unlink(entry.path)
        except OSError:
            continue
with open(place + ".new", "w", encoding="utf-8") as file:
    file.write(mine)
os.chmod(place + ".new", 0o644)
os.replace(place + ".new", place)
print(json.dumps({"now": time.time()}))
"""


class Furnished(BaseModel):
    """What the furnishing says: the clock inside."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    now: float


@dataclass(frozen=True)
class Command:
    """The words of an `sbx exec`, and the nonce that its command says first on stderr."""

    words: list[str]
    nonce: str

    @property
    def first(self) -> bytes:
        """Return the line by which a command says that it has begun, in the sandbox that was meant."""
        return f"{self.nonce}\n".encode()

    def apart(self, stderr: bytes) -> tuple[bytes, bytes] | None:
        """Return what sbx and then the command said on stderr; None when the command never began."""
        before, found, after = stderr.partition(self.first)
        return (before, after) if found else None


def environment(saved: Saved, extra: Mapping[str, str] | None, *, mark: str) -> dict[str, str]:
    """Return all that a command inside has for its environment."""
    return {**_BASE_ENV, **saved.spec.env, **(extra or {}), "TROUPE_RUN": mark}


def command(
    saved: Saved, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, flags: Sequence[str] = ("-i",),
    pid_file: str = "", tty: bool = False,
) -> Command:  # fmt: skip
    """Return the exec of a command; its words travel as one JSON, for sbx refuses an empty one."""
    nonce = "" if tty or pid_file else f"troupe-{secrets.token_hex(8)}"
    sizes = saved.spec.sizes
    told = {"nonce": nonce, "env": dict(env), "cwd": cwd, "open_files": sizes.open_files,
            "processes": sizes.processes, "pid_file": pid_file}  # fmt: skip
    return Command(_exec(saved, argv, told, flags=flags, user="agent"), nonce)


def reap(saved: Saved, mark: str) -> list[str]:
    """Return the exec that ends what a command left behind."""
    return _exec(saved, [*REAP, mark], {}, flags=(), user="agent")


def send_signal(saved: Saved, name: str) -> list[str]:
    """Return the exec that sends the gateway inside a signal."""
    script = f'read -r pid <{GATEWAY_PID} && kill -s "$1" "$pid"'
    return _exec(saved, ["/bin/sh", "-c", script, "sh", name], {}, flags=(), user="agent")


def way_out(saved: Saved) -> list[str]:
    """Return the exec that is held open as the way to the broker, ending one that an earlier run left.

    It is held to the identity as well: in a sandbox that Docker started by itself there is no way out.
    """
    argv = [*REAP, WAY_OUT, *PYTHON, f"{GUEST_DIR}/tunnel.py"]
    return _exec(saved, argv, {}, flags=("-i",), user="root")


def _exec(
    saved: Saved, argv: Sequence[str], told: Mapping[str, object], *, flags: Sequence[str], user: str
) -> list[str]:
    """Return the words of an exec; with nothing else told it is troupe's own program, beneath none of the limits."""
    own = {"nonce": "", "env": _BASE_ENV, "cwd": "/", "open_files": 4096, "processes": 4096, "pid_file": ""}
    text = _plain({**own, **told, "identity": saved.identity, "argv": list(argv)})
    parts = [text[at : at + _WORD] for at in range(0, len(text), _WORD)]
    return ["exec", *flags, "-u", user, saved.name, *PYTHON, f"{GUEST_DIR}/held.py", *parts]


def _plain(told: Mapping[str, object]) -> str:
    """Return JSON with each letter as it is, but for what UTF-8 has no bytes for."""
    return _HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", json.dumps(told, ensure_ascii=False))


def furnish(saved: Saved, *, deadline_s: float) -> float:
    """Put troupe's programs and the broker's authority in; return how far the clock inside is off, in seconds."""
    told = {"files": _files(saved), "guest": GUEST_DIR, "identity": saved.identity}
    words = ["exec", "-i", "-u", "root", saved.name, *PYTHON, "-c", _FURNISH]
    done = calls.do(words, deadline_s=deadline_s, stdin=json.dumps(told).encode())
    return answers.decode(Furnished, done.stdout, command="sbx exec").now - time.time()


def _files(saved: Saved) -> dict[str, str]:
    programs = [*sorted(guest_dir().glob("*.py")), Path(tunnel.__file__)]
    found = {f"{GUEST_DIR}/{path.name}": path.read_text(encoding="utf-8") for path in programs}
    if saved.spec.egress.is_dir():
        for path in sorted(saved.spec.egress.glob("*.pem")):
            found[f"{EGRESS_DIR}/{path.name}"] = durable.read_private(path, _CAP).decode("ascii")
    return found
