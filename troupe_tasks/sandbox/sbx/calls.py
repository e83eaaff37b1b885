"""Every call of the program `sbx`: its environment, its deadlines, and what its failures mean.

No call waits longer than its deadline, so a daemon that hangs never hangs troupe. stdin is closed unless something
is piped, so that no call ever asks a person.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from troupe_tasks import process
from troupe_tasks.errors import DaemonFailed, NotReady, ToolTimeout
from troupe_tasks.sandbox.sbx import answers, restart, trouble
from troupe_tasks.secret import Secret

ASK_S = 20.0
_SURE_S = 2.0
_AGAIN_S = 1.0
MAKE_S = 600.0  # a first create pulls Docker's own parts
LEAST = (0, 48)
# What sbx finds its state, its keyring and the network by; SSH_AUTH_SOCK is not among them: it would be forwarded.
_KEPT = (
    "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
    "SANDBOXES_STORAGE_ROOT", "DBUS_SESSION_BUS_ADDRESS",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})")

Answer = TypeVar("Answer", bound=BaseModel)


def find() -> Path | None:
    """Return the sbx to use: the one on PATH, else where Docker's own installer puts it."""
    home = os.environ.get("HOME", "/")
    path = f"{os.environ.get('PATH', '')}:{process.SYSTEM_PATH}:{home}/.docker/sbx/bin"
    found = shutil.which("sbx", path=path)
    return Path(found) if found else None


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what sbx gets of our environment."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "SBX_NO_TELEMETRY": "1", **(extra or {})}


def binary() -> Path:
    """Return the sbx to use; raises NotReady."""
    found = find()
    if found is None:
        raise NotReady(
            "Docker's sbx is not installed", hint="docs.docker.com/ai/sandboxes says how to get it."
        )
    return found


class _Seen:
    """Until when a daemon that was seen running is taken to run still: a command asks more than once."""

    until_s = 0.0


def runs() -> bool:
    """Tell whether the daemon runs; asking that starts none."""
    done = call(["daemon", "status", "--json"])
    return answers.decode(answers.Status, done.stdout, command="sbx daemon status").status == "running"


def guard() -> None:
    """Raise DaemonFailed where the daemon has a unit and does not run: sbx would start another, outside the unit."""
    if time.monotonic() < _Seen.until_s or not restart.UNIT_FILE.exists():
        return
    if not runs():
        raise DaemonFailed(
            "the sandbox daemon does not run", cause=f"{restart.UNIT_FILE.name} is stopped, or about to start again",
            hint=f"{restart.command()} starts it; `systemctl status {restart.UNIT_FILE.name}` says why it ended.",
        )  # fmt: skip
    _Seen.until_s = time.monotonic() + _SURE_S


def await_daemon(deadline_s: float) -> None:
    """Wait until a daemon that has a unit runs, as after the machine's start. Raises DaemonFailed at the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            guard()
        except DaemonFailed:
            if time.monotonic() >= end:
                raise
            time.sleep(_AGAIN_S)
        else:
            return


def _passive(words: Sequence[str | Path]) -> bool:
    """Tell whether a command leaves a stopped daemon alone; every other starts one."""
    return words[0] == "version" or list(words[:2]) == ["daemon", "status"] or words[-1] == "--help"


def call(
    words: Sequence[str | Path],
    *,
    deadline_s: float | None = None,
    stdin: bytes | Secret | None = None,
    env: Mapping[str, str] | None = None,
) -> process.Done:
    """Run one sbx command to its end, whatever its status. Raises NotReady, DaemonFailed at the deadline (ASK_S)."""
    deadline_s = ASK_S if deadline_s is None else deadline_s
    if not _passive(words):
        guard()
    try:
        return process.run(
            [binary(), *words], deadline_s=deadline_s, stdin=stdin, env=environment(env), ok=None,
            cap_bytes=8 << 20,
        )  # fmt: skip
    except ToolTimeout:
        raise DaemonFailed(
            f"{_named(words)} did not answer within {deadline_s:g} s; it was stopped", hint=restart.MENDS
        ) from None


def do(
    words: Sequence[str | Path],
    *,
    deadline_s: float | None = None,
    stdin: bytes | Secret | None = None,
    env: Mapping[str, str] | None = None,
) -> process.Done:
    """Run one sbx command that has to end well; its words say what went wrong."""
    done = call(words, deadline_s=deadline_s, stdin=stdin, env=env)
    if done.status != 0:
        raise trouble.told(done.stderr + b"\n" + done.stdout, doing=_named(words))
    return done


def ask(model: type[Answer], words: Sequence[str], *, deadline_s: float | None = None) -> Answer:
    """Return a command's JSON. A listing that was cut short is no listing."""
    done = do(words, deadline_s=deadline_s)
    if done.truncated:
        raise DaemonFailed(f"{_named(words)} gave more than troupe reads", hint=restart.MENDS)
    return answers.decode(model, done.stdout, command=f"sbx {words[0]}")


def _named(words: Sequence[str | Path]) -> str:
    """Return a command's first words, which are no one's data."""
    plain = [str(word) for word in words[:2] if not str(word).startswith("-")]
    groups = {"daemon", "env", "kit", "policy", "secret", "settings", "template"}
    return f"`sbx {' '.join(plain if plain[0] in groups else plain[:1])}`"


def number(text: str) -> tuple[int, int] | None:
    """Return a release's first two numbers, or None."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2])) if match else None


def check(*, run: Callable[[Sequence[str]], process.Done] | None = None) -> None:
    """Raise NotReady when sbx is missing, too old, or another release than its daemon; asking starts no daemon.

    run stands in for do() where another deadline holds.
    """
    done = (run or do)(["version", "--json"])
    found = answers.decode(answers.Version, done.stdout, command="sbx version")
    ours = number(found.client.version)
    if ours is None or ours < LEAST:
        raise NotReady(
            f"sbx is {found.client.version}, and troupe needs {LEAST[0]}.{LEAST[1]} or newer",
            hint="Install Docker's newest sbx.",
        )  # fmt: skip
    if found.server.version and found.server.version.lstrip("v") != found.client.version.lstrip("v"):
        raise NotReady(
            f"sbx is {found.client.version}, but its daemon is {found.server.version}",
            cause="it was upgraded while the daemon ran", hint=f"{restart.COMMAND}; it stops every sandbox.",
        )  # fmt: skip
