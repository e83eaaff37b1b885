"""The sbx driver: the protocol, over Docker's command line.

sbx has no labels and no start command, answers every trouble with status 1, starts what it is asked about, and may
forget what it has. So: a name of ours is never used twice; Docker's own ID is compared before anything is done;
what is recorded but not listed is MISSING, never gone; and a command proves that it began.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from troupe_tasks import durable, process
from troupe_tasks.errors import SandboxFailed, SandboxGone, TroupeError
from troupe_tasks.paths import Paths
from troupe_tasks.record import agent_of
from troupe_tasks.sandbox import holding
from troupe_tasks.sandbox.commands import Commands
from troupe_tasks.sandbox.protocol import (
    WORKSPACE,
    Isolation,
    LimitReport,
    Listing,
    SandboxInfo,
    SandboxSpec,
    Sizes,
    State,
    not_running,
)  # fmt: skip
from troupe_tasks.sandbox.sbx import (
    answers,
    calls,
    environment,
    inside,
    making,
    ready,
    restart,
    template,
    trouble,
    way_out,
)
from troupe_tasks.sandbox.sbx import saved as keeping
from troupe_tasks.sandbox.sbx.saved import Saved
from troupe_tasks.sandbox.stream import Flow, Pumped, pump, refuse_cut
from troupe_tasks.text import line

_DAEMON_S = 120.0  # after the machine's start a gateway may be there before the daemon is
_START_S = 120.0
_STOP_S = 60.0  # sbx takes up to 6 s by itself
_REAP_S = 20.0
_SKEW_S = 120.0
_STATES = {"running": State.RUNNING, "stopped": State.STOPPED}
_NOW = "import time; print(int(time.time()))"
_FAILED = b"ERROR: "  # how every failure of sbx's own begins
# Of both disks, where Docker's is one of its own.
_USED = """\
import os
places = [place for place in ("/state", "/var/lib/docker") if os.path.exists(place)]
disks = {os.stat(place).st_dev: os.statvfs(place) for place in places}
print(sum((disk.f_blocks - disk.f_bfree) * disk.f_frsize for disk in disks.values()) >> 20)
"""


class Sbx(Commands):
    """The sandboxes that Docker runs for this user."""

    name = "sbx"

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def isolation(self) -> Isolation:
        """Return KVM: a sandbox of Docker's is a virtual machine. NotReady where none would be made."""
        ready.check()
        return Isolation.KVM

    def limits(self) -> tuple[LimitReport, ...]:
        """Return how each size binds: the machine's own, the rest by resource limits inside."""
        machine = "the virtual machine's own"
        return (
            LimitReport(resource="memory", binds=True, how=machine),
            LimitReport(resource="cpus", binds=True, how=machine),
            LimitReport(resource="processes", binds=True, how="RLIMIT_NPROC"),
            LimitReport(resource="open_files", binds=True, how="RLIMIT_NOFILE"),
            LimitReport(resource="storage", binds=True, how="the virtual machine's root disk"),
        )

    def list(self) -> Listing:
        """Return what sbx lists, and what is recorded but not listed as MISSING."""
        listed = {one.name: one for one in making.listing()}
        ours: list[SandboxInfo] = []
        complete = True
        for sandbox_id in keeping.folders(self._paths):
            try:
                saved = keeping.load(self._paths, sandbox_id)
            except TroupeError:
                complete = False
                continue
            ours.append(self._info(saved, listed.pop(saved.name, None)))
        strangers = [
            SandboxInfo(
                name=one.name, id=None, identity=one.id, sizes=None, isolation=Isolation.KVM, started_at=None,
                state=_STATES.get(one.status, State.BROKEN),
            )
            for one in listed.values()
        ]  # fmt: skip
        return Listing(complete=complete, sandboxes=(*ours, *strangers))

    def create(self, spec: SandboxSpec) -> str:
        """Make the sandbox by its environment file; sbx leaves it running."""
        environment.refuse(memory_mib=spec.sizes.memory_mib, docker_mib=spec.sizes.docker_mib)
        saved = keeping.begin(self._paths, spec)
        if saved.identity is not None:
            self._checked(saved)
            return saved.identity
        return making.make(self._paths, saved)

    def start(self, sandbox_id: str) -> None:
        """Start the sandbox on record, give it troupe's programs, and open its way out."""
        saved = keeping.load(self._paths, sandbox_id)
        calls.await_daemon(_DAEMON_S)
        one = self._checked(saved)
        if _STATES.get(one.status) is State.RUNNING and self._works(sandbox_id):
            return
        way_out.stop(self._paths, sandbox_id)
        durable.make_private_dir(saved.spec.egress)
        if self._furnish(saved):
            # After the host slept, a guest's clock may be hours behind; only a start sets it (sbx issue 111).
            calls.do(["stop", saved.name], deadline_s=_STOP_S)
            if off_s := self._furnish(saved):
                raise SandboxFailed(
                    f"the clock of {sandbox_id} is {off_s:.0f} s off", cause="with it no TLS and no token works",
                    hint=f"{restart.COMMAND}, then start the agent again.",
                )  # fmt: skip
        way_out.start(self._paths, saved)

    def stop(self, sandbox_id: str, *, deadline_s: float) -> None:
        """Let what runs inside end by itself until the deadline, then stop the machine."""
        saved = keeping.load(self._paths, sandbox_id)
        one = self._checked(saved)
        if _STATES.get(one.status) is State.RUNNING:
            self._ask_to_end(saved, deadline_s)
        way_out.stop(self._paths, sandbox_id)
        if _STATES.get(one.status) is not State.STOPPED:
            calls.do(["stop", saved.name], deadline_s=_STOP_S)

    def remove(self, sandbox_id: str) -> None:
        """Remove the sandbox, and what is kept of it once sbx no longer lists it."""
        if not keeping.place(self._paths, sandbox_id).is_dir():
            return
        try:
            saved = keeping.load(self._paths, sandbox_id)
        except SandboxGone:  # killed before its file was written: nothing can have been made
            keeping.forget(self._paths, sandbox_id)
            return
        making.remove(self._paths, saved)

    def attach(
        self,
        sandbox_id: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = WORKSPACE,
    ) -> int:
        """Give the terminal to a command inside; sbx would start what does not run, so that is asked first."""
        saved = keeping.load(self._paths, sandbox_id)
        if _STATES.get(self._checked(saved).status) is not State.RUNNING:
            raise not_running(sandbox_id)
        term = {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
        given = inside.environment(saved, {**term, **(env or {})}, mark="attached")
        command = inside.command(saved, argv, env=given, cwd=cwd, flags=("-i", "-t"), tty=True)
        return process.terminal([calls.binary(), *command.words], env=calls.environment())

    def gateway_argv(self, sandbox_id: str, argv: Sequence[str], env: Mapping[str, str]) -> Sequence[str]:
        """Return a small shell that waits for the exec and signals the process inside."""
        saved = keeping.load(self._paths, sandbox_id)
        command = inside.command(
            saved, [*inside.REAP, inside.GATEWAY, *argv],
            env=inside.environment(saved, env, mark=inside.GATEWAY), cwd=WORKSPACE, flags=(),
            pid_file=inside.GATEWAY_PID,
        )  # fmt: skip
        program = str(calls.binary())
        # Not the proxies' variables, which may hold a password; an exec asks nobody but the daemon.
        given = {name: value for name, value in calls.environment().items() if "proxy" not in name.lower()}
        variables = [f"{name}={value}" for name, value in given.items()]
        sending = f'{shlex.join(way_out.sending(saved))} "$1"'
        return ["/usr/bin/env", *variables, *holding.argv([program, *command.words], passing=sending)]

    def sizes(self, sandbox_id: str) -> Sizes:
        """Return a sandbox's sizes, which sbx itself does not tell."""
        return keeping.load(self._paths, sandbox_id).spec.sizes

    def forget_image(self, image: Path) -> None:
        """Remove the template that was made of an image."""
        template.forget(image)

    def pids(self, sandbox_id: str) -> tuple[int, ...]:
        """Return the process of the way out: sbx tells nothing of the virtual machine's."""
        found = way_out.pid(self._paths, sandbox_id)
        return () if found is None else (found,)

    def disk_used_mib(self, sandbox_id: str, *, may_ask: bool = True) -> int:
        """Return what the disk holds, asked inside; of one that does not run, what it held when last asked."""
        saved = keeping.load(self._paths, sandbox_id)
        if not may_ask or way_out.pid(self._paths, sandbox_id) is None:
            return keeping.used_mib(self._paths, sandbox_id)
        done = self.run(
            sandbox_id, [*inside.PYTHON, "-c", _USED], cwd="/", deadline_s=calls.ASK_S, cap_bytes=100
        )
        said = done.stdout.strip()
        if done.status != 0 or not said.isdigit():
            return keeping.used_mib(self._paths, sandbox_id)
        used = min(int(said), saved.spec.sizes.disk_mib)  # a sandbox's own word
        keeping.keep_used(self._paths, sandbox_id, used)
        return used

    def _info(self, saved: Saved, one: answers.Listed | None) -> SandboxInfo:
        """Return how a sandbox stands; one without its way out is as good as stopped, and `start` mends it.

        So is one of which sbx says a word that is not known: whether it is of any use only a start can show.
        """
        if one is None:
            state = State.MISSING
        elif saved.identity is None or one.id != saved.identity:
            state = State.BROKEN
        else:
            state = _STATES.get(one.status, State.STOPPED)
        if state is State.RUNNING and way_out.pid(self._paths, saved.spec.id) is None:
            state = State.STOPPED
        return SandboxInfo(
            name=saved.name, id=saved.spec.id, identity=one.id if one else saved.identity or "", state=state,
            sizes=saved.spec.sizes, isolation=Isolation.KVM, started_at=None,
            takes_room=one is not None and _STATES.get(one.status) is State.RUNNING,
        )  # fmt: skip

    def _works(self, sandbox_id: str) -> bool:
        """Tell whether a command of ours runs, and sees our time: it may run anew, or since before the host slept."""
        try:
            done = self.run(sandbox_id, [*inside.PYTHON, "-c", _NOW], cwd="/", deadline_s=calls.ASK_S)
            return done.status == 0 and abs(int(done.stdout) - time.time()) <= _SKEW_S
        except (TroupeError, ValueError):
            return False

    def _checked(self, saved: Saved) -> answers.Listed:
        """Return what sbx lists under a sandbox's name, which has to be the one on record."""
        one = making.listed(saved.name)
        if one is None:
            raise SandboxGone(
                f"the sandbox {saved.spec.id} is on record, but sbx does not list it",
                cause=f"its name is {saved.name}", hint=f"{restart.BRINGS_BACK} Nothing was removed or made anew.",
            )  # fmt: skip
        if saved.identity is None:
            raise SandboxGone(
                f"the sandbox {saved.spec.id} was never made whole", hint="Run the interrupted create again."
            )
        if one.id != saved.identity:
            raise SandboxGone(
                f"the sandbox {saved.name} is not the one on record",
                cause=f"its ID is {line(one.id, 60)}, on record is {saved.identity}",
                hint="Somebody made another one under its name. Nothing was done to it.",
            )  # fmt: skip
        return one

    def _furnish(self, saved: Saved) -> float:
        """Start and furnish a sandbox, and return how far its clock is off, 0 when that is little enough.

        There is no other start than to run something: sbx refuses that for a sandbox that it does not have.
        """
        off_s = inside.furnish(saved, deadline_s=_START_S)
        return off_s if abs(off_s) > _SKEW_S else 0.0

    def _ask_to_end(self, saved: Saved, deadline_s: float) -> None:
        """Ask everything of the agent's to end, and wait for it until the deadline."""
        words = ["exec", "-u", "agent", saved.name, *inside.PYTHON, "-c", inside.END_ALL, f"{deadline_s:g}"]
        with suppress(TroupeError):
            calls.call(words, deadline_s=deadline_s + _REAP_S)

    def _exec(
        self, sandbox_id: str, argv: Sequence[str], flow: Flow, *, env: Mapping[str, str] | None, cwd: str
    ) -> Pumped:
        saved = keeping.load(self._paths, sandbox_id)
        if way_out.pid(self._paths, sandbox_id) is None:
            raise not_running(sandbox_id)
        calls.guard()
        mark = os.urandom(8).hex()
        given = inside.environment(saved, env, mark=mark)
        command = inside.command(saved, argv, env=given, cwd=cwd)
        try:
            child = process.piped([calls.binary(), *command.words], env=calls.environment())
            pumped = pump(child, flow, awaited=command.first)
        except BaseException:
            _reap(saved, mark)
            raise
        if pumped.late or pumped.over:
            _reap(saved, mark)
        refuse_cut(pumped, sandbox_id, flow)
        parts = command.apart(pumped.stderr)
        if parts is None:
            raise self._never_began(saved, pumped.stderr)
        if pumped.status >= 128 and way_out.pid(self._paths, sandbox_id) is None:
            raise not_running(sandbox_id)
        if pumped.status == 1 and _FAILED in parts[1]:  # a command's own end, or sbx's in the middle of it
            self._refuse_ended(saved, parts[1])
        return Pumped(**{**pumped.__dict__, "stderr": parts[1]})

    def _refuse_ended(self, saved: Saved, said: bytes) -> None:
        """Raise what sbx ran into, if the sandbox does not run any more."""
        if _STATES.get(self._checked(saved).status) is not State.RUNNING:
            raise trouble.told(said, doing=f"a command in {saved.spec.id}")

    def _never_began(self, saved: Saved, said: bytes) -> TroupeError:
        """Return why a command did not begin: its sandbox is another, does not run, or sbx failed."""
        if b"not started by troupe" in said or b"held.py" in said:
            return SandboxGone(
                f"the sandbox {saved.spec.id} is not running as troupe started it", cause=line(said.strip()[-300:]),
                hint=f"`troupe start {agent_of(saved.spec.id)}` starts it.",
            )  # fmt: skip
        return trouble.told(said, doing=f"a command in {saved.spec.id}")


def _reap(saved: Saved, mark: str) -> None:
    """End what a command left behind inside: killing the host's side of it does not. One that stopped has nothing."""
    with suppress(TroupeError):
        one = making.listed(saved.name)
        if one is not None and _STATES.get(one.status) is State.RUNNING:
            calls.call(inside.reap(saved, mark), deadline_s=_REAP_S)
