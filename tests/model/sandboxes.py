"""A driver whose sandboxes are folders of a test's own: whole, half made, broken or missing, running or not.

The guest programs are the real ones, each in a process of its own that is forked from the test's: to start Python
anew for each would be most of the time. Everything else is the protocol's word, as far as operations rest on it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import IO, Any, NoReturn, cast

from tests.model.faults import Faults
from troupe_tasks import process
from troupe_tasks.errors import AlreadyExists, SandboxFailed, SandboxGone, SandboxTimeout
from troupe_tasks.sandbox.commands import Commands
from troupe_tasks.sandbox.protocol import (
    GUEST_DIR,
    Isolation,
    LimitReport,
    Listing,
    SandboxInfo,
    SandboxSpec,
    Sizes,
    State,
    Streamed,
)
from troupe_tasks.sandbox.stream import Flow, Pumped, pump

GUEST = Path(__file__).parents[2] / "guest"
_PYTHON = ("/usr/bin/python3", "-I", "-S")
_CODE: dict[str, CodeType] = {}


def _compiled(source: str, name: str) -> CodeType:
    if source not in _CODE:
        _CODE[source] = compile(source, name, "exec")
    return _CODE[source]


_SHARED = {
    name: _compiled((GUEST / f"{name}.py").read_text(encoding="utf-8"), name) for name in ("sending", "tree")
}


@dataclass
class Forked:
    """A process with pipes, as far as the pump needs one."""

    pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    status: int | None = None

    def poll(self) -> int | None:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (1e9 if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("a guest program", timeout or 0)
            time.sleep(0.0005)
        return cast("int", self.status)


def fork(code: CodeType, words: Sequence[str], env: Mapping[str, str], faults: Faults) -> Forked:
    """Run a program in a child of this process."""
    pipes = [os.pipe() for _ in range(3)]
    with warnings.catch_warnings():
        # Of the test runner's threads, which the child lets be.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _become(code, words, env, faults, (pipes[0][0], pipes[1][1], pipes[2][1]))
    _own_group(pid)  # here too: whoever kills the group at once must not come before the child has made it
    for ours in (pipes[0][0], pipes[1][1], pipes[2][1]):
        os.close(ours)
    stdin, stdout, stderr = (
        os.fdopen(handle, mode)
        for handle, mode in ((pipes[0][1], "wb"), (pipes[1][0], "rb"), (pipes[2][0], "rb"))
    )
    return Forked(pid, stdin, stdout, stderr)


def _own_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended
        os.setpgid(pid, 0)


def _become(
    code: CodeType, words: Sequence[str], env: Mapping[str, str], faults: Faults, ends: tuple[int, int, int]
) -> NoReturn:
    status = 1
    try:
        gc.disable()
        faults.off()
        _own_group(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for number, handle in enumerate(ends):
            os.dup2(handle, number)
        os.closerange(3, 256)
        os.environ.clear()
        os.environ.update(env)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            for number, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        sys.argv = list(words)
        for name, shared in _SHARED.items():  # compiled once, not in each child
            sys.modules[name] = module = ModuleType(name)
            exec(shared, vars(module))  # noqa: S102
        exec(code, {"__name__": "__main__", "__file__": words[0]})  # noqa: S102
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


class Folders(Commands):
    """The sandboxes of one stage. `meddled` are programs that a sandbox has in the place of ours, by ID and name."""

    name = "capsule"

    def __init__(self, root: Path, faults: Faults) -> None:
        self.root, self._faults = root, faults
        self.running: set[str] = set()
        self.broken: set[str] = set()
        self.stuck: set[str] = set()  # whole, and does not start
        self.meddled: dict[tuple[str, str], str] = {}
        self.turn = "answers"
        self.before_remove: Callable[[str], None] = lambda _sandbox: None
        self.before_transfer: Callable[[str], None] = lambda _sandbox: None
        self._programs = {path.stem: path.read_text(encoding="utf-8") for path in GUEST.glob("*.py")}
        root.mkdir(parents=True)

    def place(self, sandbox_id: str) -> Path:
        """Return a sandbox's folder."""
        return self.root / sandbox_id

    def lose(self, sandbox_id: str) -> None:
        """Have a sandbox be gone, as after a hand in the driver's folders."""
        shutil.rmtree(self.place(sandbox_id))
        self.running.discard(sandbox_id)

    def isolation(self) -> Isolation:
        return Isolation.GVISOR

    def limits(self) -> tuple[LimitReport, ...]:
        return ()

    def all(self) -> tuple[str, ...]:
        """Return every folder there is, half made ones too."""
        return tuple(sorted(entry.name for entry in self.root.iterdir()))

    def list(self) -> Listing:
        return Listing(complete=True, sandboxes=tuple(map(self._info, filter(self._made, self.all()))))

    def _made(self, sandbox_id: str) -> bool:
        return (self.place(sandbox_id) / "spec.json").exists()

    def _spec(self, sandbox_id: str) -> SandboxSpec:
        try:
            text = (self.place(sandbox_id) / "spec.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise SandboxGone(f"there is no sandbox {sandbox_id}") from None
        return SandboxSpec.model_validate_json(text.partition("\n")[2])

    def _info(self, sandbox_id: str) -> SandboxInfo:
        whole = (self.place(sandbox_id) / "state").is_dir() and sandbox_id not in self.broken
        state = State.RUNNING if sandbox_id in self.running else State.STOPPED
        return SandboxInfo(
            name=sandbox_id, id=sandbox_id, identity="x", state=state if whole else State.BROKEN,
            sizes=self._spec(sandbox_id).sizes, isolation=Isolation.GVISOR, started_at=None,
        )  # fmt: skip

    def create(self, spec: SandboxSpec) -> str:
        folder = self.place(spec.id)
        self._faults.step(f"create {spec.id}, not begun")
        folder.mkdir(exist_ok=True)
        self._faults.step(f"create {spec.id}, half")
        if not self._made(spec.id):
            beside = folder / ".spec"
            beside.write_text(f"{uuid.uuid4().hex}\n{spec.model_dump_json()}", encoding="utf-8")
            beside.rename(folder / "spec.json")
        elif self._spec(spec.id) != spec:
            raise AlreadyExists(f"there is a sandbox {spec.id} already, made to another plan")
        self._faults.step(f"create {spec.id}, without a disk")
        for name in ("tmp", "workspace", "state"):
            (folder / name).mkdir(exist_ok=True)
        return (folder / "spec.json").read_text(encoding="utf-8").partition("\n")[0]

    def start(self, sandbox_id: str) -> None:
        self._faults.step(f"start {sandbox_id}")
        self._spec(sandbox_id)
        if not (self.place(sandbox_id) / "state").is_dir() or sandbox_id in self.broken:
            raise SandboxGone(f"the sandbox {sandbox_id} has no disk")
        if sandbox_id in self.stuck:
            raise SandboxFailed(f"the disk of {sandbox_id} does not mount")
        self.running.add(sandbox_id)

    def stop(self, sandbox_id: str, *, deadline_s: float) -> None:
        self._faults.step(f"stop {sandbox_id}")
        self._spec(sandbox_id)
        self.running.discard(sandbox_id)

    def remove(self, sandbox_id: str) -> None:
        self._faults.step(f"remove {sandbox_id}")
        folder = self.place(sandbox_id)
        if not folder.is_dir():
            return
        self.before_remove(sandbox_id)
        self.running.discard(sandbox_id)
        for name in ("state", "workspace", "tmp"):
            shutil.rmtree(folder / name, ignore_errors=True)
        self._faults.step(f"remove {sandbox_id}, half")
        self.broken.discard(sandbox_id)
        shutil.rmtree(folder)

    def sizes(self, sandbox_id: str) -> Sizes:
        return self._spec(sandbox_id).sizes

    def forget_image(self, image: Path) -> None:
        return

    def pids(self, sandbox_id: str) -> tuple[int, ...]:
        return ()

    def disk_used_mib(self, sandbox_id: str, *, may_ask: bool = True) -> int:
        self._spec(sandbox_id)
        return 1

    def gateway_argv(self, sandbox_id: str, argv: Sequence[str], env: Mapping[str, str]) -> Sequence[str]:
        raise NotImplementedError

    def attach(self, sandbox_id: str, argv: Sequence[str], **_given: Any) -> int:
        raise NotImplementedError

    def stream(self, sandbox_id: str, argv: Sequence[str], **given: Any) -> Streamed:
        self.before_transfer(sandbox_id)
        return super().stream(sandbox_id, argv, **given)

    def _exec(
        self, sandbox_id: str, argv: Sequence[str], flow: Flow, *, env: Mapping[str, str] | None, cwd: str
    ) -> Pumped:
        ours = tuple(argv[:3]) == _PYTHON and argv[3].startswith(GUEST_DIR)
        self._faults.step(f"run {argv[3] if ours else argv[0]} in {sandbox_id}")
        self._spec(sandbox_id)
        if sandbox_id not in self.running:
            raise SandboxGone(f"the sandbox {sandbox_id} is not running")
        done = pump(self._child(sandbox_id, argv, ours=ours), flow)
        dies = self.place(sandbox_id) / "tmp/dies"
        if dies.exists():  # with all that ran in it
            dies.unlink()
            self.running.discard(sandbox_id)
            raise SandboxGone(f"the sandbox {sandbox_id} is not running")
        if done.over:
            raise SandboxFailed(f"past its cap of {flow.cap_bytes} bytes")
        if done.late:
            raise SandboxTimeout("stood still" if done.stuck else "late")
        return done

    def _child(self, sandbox_id: str, argv: Sequence[str], *, ours: bool) -> subprocess.Popen[bytes]:
        words = [self._word(sandbox_id, word) for word in argv]
        env = {"TMPDIR": str(self.place(sandbox_id) / "tmp"), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        if not ours:
            pipe = subprocess.PIPE
            return process.spawn(words, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
        name = Path(argv[3]).stem
        meddled = self.meddled.get((sandbox_id, name)) or self.meddled.get(("*", name))
        source = meddled or (self._turn() if name == "turn" else self._programs[name])
        place = self.place(sandbox_id) if meddled else GUEST
        env["TROUPE_SANDBOX"] = str(self.place(sandbox_id))
        found = fork(_compiled(source, argv[3]), [str(place / f"{name}.py"), *words[4:]], env, self._faults)
        return cast("subprocess.Popen[bytes]", found)

    def _turn(self) -> str:
        if self.turn == "answers":
            return 'print(\'{"completed": true, "model": "m", "reply": "ready", "error": ""}\')'
        if self.turn == "fails":
            return 'print(\'{"completed": false, "model": "m", "reply": "", "error": "HTTP 401"}\')'
        return "import sys; sys.exit(3)"

    def _word(self, sandbox_id: str, word: str) -> str:
        flag, _, rest = word.rpartition("=") if word.startswith("--directory=") else ("", "", word)
        for top in ("state", "workspace"):
            if rest == f"/{top}" or rest.startswith(f"/{top}/"):
                return f"{flag}{'=' if flag else ''}{self.place(sandbox_id)}{rest}"
        return word


def fork_and_feed(name: str, words: Sequence[str], data: bytes, faults: Faults) -> int:
    """Run one of the guest programs on folders, with data on its stdin, and return its status."""
    child = fork(
        _compiled((GUEST / f"{name}.py").read_text(encoding="utf-8"), name), words, dict(os.environ), faults
    )
    flow = Flow(deadline_s=60, cap_bytes=1 << 30, source=data)
    return pump(cast("subprocess.Popen[bytes]", child), flow).status
