"""Put the sandbox daemon under its unit; install.sh runs this file as a program, before it switches to its troupe.

With one question of sudo's, and only where something has to change. Where the unit can't be yet, it is left out and
the reason told: troupe is of use without it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from troupe_tasks import durable, process
from troupe_tasks.errors import DaemonFailed, Refused, TroupeError
from troupe_tasks.host.quota import text_of
from troupe_tasks.sandbox.sbx import calls, host, signin
from troupe_tasks.sandbox.sbx.signin import Standing as SignedIn
from troupe_tasks.services import daemon
from troupe_tasks.text import escape, line

_ASK_S = 20.0
_AGAIN = "then run the installer again"
_WITHOUT = "--without-units installs troupe all the same (`troupe update` takes it too)."
_LEFT_OUT = {
    SignedIn.OUT: f"sbx is not signed in: `sbx login`, {_AGAIN}",
    SignedIn.DAMAGED: f"the store of its sign-in is damaged: `sbx login`, {_AGAIN}",
    SignedIn.KEYRING: "sbx keeps its sign-in in your keyring, if anywhere, which no unit can open: `sbx login` in a"
    f" session without one (over ssh), {_AGAIN}",
}
# Each file takes its place whole, even where the power goes, and the unit after what says whose daemon it starts. A
# daemon that runs under an older unit goes on: a restart would stop every sandbox.
_SCRIPT = """
install -D -m 644 "$1" "$2.new"
install -D -m 644 "$3" "$4.new"
sync "$2.new" "$4.new"
mv -T "$4.new" "$4"
mv -T "$2.new" "$2"
systemctl daemon-reload
systemctl reset-failed "$5" 2>/dev/null || :
systemctl enable --quiet "$5"
systemctl start "$5"
"""


def settle(told: Callable[[str], None], *, root: Path = Path("/")) -> None:
    """Have the daemon run under its unit and a policy set, or tell why not; raises Refused and what sudo runs into.

    What Docker's programs run into once the unit is in place is told: it is no fault of the troupe to be installed.
    """
    sbx = calls.find()
    if reason := _not_yet(sbx, root):
        told(f"the sandbox daemon's unit is left out: {reason}")
        return
    assert sbx is not None  # noqa: S101 - _not_yet tells
    me = pwd.getpwuid(os.geteuid()).pw_name

    def text(path: str) -> str:
        return text_of(root / path.lstrip("/"))

    look = partial(daemon.standing, sbx, me, run=_run, text=text)
    found = look()
    if found.owner not in ("", me):
        raise Refused(
            f"the sandbox daemon of this machine runs for {line(found.owner, 60)}",
            hint=f"One user of a machine has it. Use troupe as that user, or another driver. {_WITHOUT}",
        )
    if found.outside:
        raise Refused(
            "a sandbox daemon runs outside its unit",
            hint=f"`sbx daemon stop`, which stops every sandbox, {_AGAIN}. {_WITHOUT}",
        )
    if not found.in_place:
        as_root = _as_root()
        if as_root is None:
            told(f"the sandbox daemon's unit is left out: it takes root; install sudo, {_AGAIN}")
            return
        _install(daemon.contents(sbx, me, text=text), told, as_root=as_root, was_active=found.active)
        found = look()
        if not found.in_place:
            raise DaemonFailed(
                "the sandbox daemon does not run under its unit",
                hint=f"`systemctl status {daemon.UNIT}` says why. {_WITHOUT}",
            )
    _have_policy(found, told)


def _have_policy(found: daemon.Standing, told: Callable[[str], None]) -> None:
    """Have a network policy set, or tell why not yet; the first sandbox is not made without one either."""
    if not found.answers:
        told(
            f"the sandbox daemon does not answer; `troupe doctor` and `journalctl -u {daemon.UNIT}` say more"
        )
        return
    try:
        host.ensure_policy()
    except TroupeError as error:
        told(
            f"going on without looking after sbx's network policy: {line(str(error), 300)}. {line(error.hint, 300)}"
        )


def _not_yet(sbx: Path | None, root: Path) -> str:
    """Return why there can be no unit now, or nothing."""
    if not (root / "run/systemd/system").exists():
        return "systemd is not the init here"
    if sbx is None:
        return "sbx is not installed; without it agents are capsules"
    return _LEFT_OUT.get(signin.read().standing, "")


def _run(argv: Sequence[str]) -> process.Done:
    return process.run(argv, deadline_s=_ASK_S, cap_bytes=65536, ok=None, env=calls.environment())


def _as_root() -> list[str] | None:
    """Return the words before a command that root has to run, or None where there is no way."""
    if os.geteuid() == 0:
        return []
    return ["sudo", "--"] if shutil.which("sudo", path=process.SYSTEM_PATH) else None


def _install(
    wanted: dict[Path, str], told: Callable[[str], None], *, as_root: list[str], was_active: bool
) -> None:
    told(f"putting the sandbox daemon's unit in place, which takes root: {', '.join(map(str, wanted))}")
    with tempfile.TemporaryDirectory(prefix="troupe-units-") as folder:
        words: list[str | Path] = []
        for number, (target, data) in enumerate(wanted.items()):
            durable.write(Path(folder, str(number)), data.encode())
            words += [Path(folder, str(number)), target]
        status = process.terminal([*as_root, "sh", "-euc", _SCRIPT, "sh", *words, daemon.UNIT])
    if status != 0:
        raise DaemonFailed(
            f"the sandbox daemon's unit could not be put in place (status {status})", cause="why is above",
            hint=f"`systemctl status {daemon.UNIT}` may say more. {_WITHOUT}",
        )  # fmt: skip
    if was_active:
        told(
            f"`sudo systemctl restart {daemon.UNIT}`, which stops every sandbox, puts the changed unit in force"
        )


def main() -> int:
    """Settle the unit, and return an exit status."""
    try:
        settle(lambda text: print(f"troupe: {escape(text)}", file=sys.stderr, flush=True))  # noqa: T201
    except TroupeError as error:
        print(f"Error: {escape(str(error))}\n  What to do: {escape(error.hint)}", file=sys.stderr)  # noqa: T201
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
