"""The process seam: what a program gets, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import SecretStr

from troupe_tasks import process
from troupe_tasks.errors import ToolFailed, ToolMissing, ToolTimeout
from troupe_tasks.secret import Secret

ROOT = Path(__file__).resolve().parents[2]


def gone(pid: int) -> bool:
    """Tell whether a process has ended (a zombie has)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rpartition(")")[2].split()[0] in "ZX"


def wait_until_gone(pid: int, deadline_s: float = 10) -> None:
    until = time.monotonic() + deadline_s
    while not gone(pid):
        assert time.monotonic() < until, f"process {pid} is still there"
        time.sleep(0.01)


@pytest.mark.parametrize("argument", [SecretStr("hunter2"), b"hunter2", 5, None])
def test_only_text_and_paths_are_arguments(argument: object) -> None:
    with pytest.raises(TypeError, match="argument 1 is a") as caught:
        process.run(["echo", argument], deadline_s=5)  # type: ignore[list-item]
    assert "hunter2" not in str(caught.value)
    with pytest.raises(TypeError):
        process.spawn(["echo", argument])  # type: ignore[list-item]


def test_arguments_arrive_as_they_are() -> None:
    words = ["", "a b", "*", "$HOME", "-x", "é", "a\nb", "'\""]
    code = "import sys; print(ascii(sys.argv[1:]))"
    assert process.run([sys.executable, "-c", code, *words], deadline_s=20).stdout.decode().strip() == ascii(
        words
    )


def test_the_environment_is_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "leaks")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    done = process.run(["env"], deadline_s=5, env={"EXTRA": "1"})
    found = dict(entry.split("=", 1) for entry in done.stdout.decode().splitlines())
    assert set(found) - {"PWD", "OLDPWD"} == {"PATH", "LANG", "HOME", "EXTRA"}
    assert found["PATH"] == process.SYSTEM_PATH
    assert found["LANG"] == "C.UTF-8"


def test_stdin_is_at_its_end_unless_given() -> None:
    assert process.run(["cat"], deadline_s=5).stdout == b""
    data = bytes(range(256)) * 4000
    assert process.run(["cat"], deadline_s=20, stdin=data).stdout == data


def test_a_program_that_does_not_read_its_stdin_is_no_error() -> None:
    assert process.run(["true"], deadline_s=5, stdin=b"x" * 1_000_000).status == 0


def test_all_that_a_quick_program_prints_is_read() -> None:
    for turn in range(10):
        done = process.run(["sh", "-c", f"echo out{turn}; echo err{turn} >&2"], deadline_s=5)
        assert (done.stdout, done.stderr) == (b"out%d\n" % turn, b"err%d\n" % turn)


def test_output_is_capped_and_the_program_still_ends() -> None:
    done = process.run(["head", "-c", "3000000", "/dev/zero"], deadline_s=20, cap_bytes=1000)
    assert done.stdout == bytes(1000)
    assert done.truncated
    assert not process.run(["head", "-c", "1000", "/dev/zero"], deadline_s=20, cap_bytes=1000).truncated


@pytest.mark.parametrize(
    ("script", "status"), [("exit 3", 3), ("exit 255", 255), ("kill -KILL $$", -9), ("kill -TERM $$", -15)]
)
def test_statuses_are_told(script: str, status: int) -> None:
    with pytest.raises(ToolFailed, match=f"status {status}") as caught:
        process.run(["sh", "-c", f"echo why >&2; {script}"], deadline_s=5)
    done = caught.value.done
    assert isinstance(done, process.Done)
    assert done.status == status
    assert caught.value.cause == "why"
    assert process.run(["sh", "-c", script], deadline_s=5, ok=None).status == status
    assert process.run(["sh", "-c", script], deadline_s=5, ok=(0, status)).status == status


def test_what_a_failing_program_says_is_escaped() -> None:
    with pytest.raises(ToolFailed) as caught:
        process.run(["sh", "-c", r"printf '\033[31mred\377' >&2; exit 1"], deadline_s=5)
    assert caught.value.cause == "\\x1b[31mred\\xff"


def test_the_deadline_ends_the_whole_group() -> None:
    started = time.monotonic()
    with pytest.raises(ToolTimeout, match=r"within 0\.5 s") as caught:
        process.run(["sh", "-c", "(trap '' TERM HUP; sleep 300) & echo $!; wait"], deadline_s=0.5)
    assert time.monotonic() - started < 5
    done = caught.value.done
    assert isinstance(done, process.Done)
    wait_until_gone(int(done.stdout))


def test_a_missing_program_is_named() -> None:
    for call in (
        lambda: process.run(["no-such-tool"], deadline_s=5),
        lambda: process.spawn(["no-such-tool"]),
    ):
        with pytest.raises(ToolMissing, match="no-such-tool"):
            call()


def test_the_folder_and_inherited_files_are_given(tmp_path: Path) -> None:
    assert process.run(["pwd", "-P"], deadline_s=5, cwd=tmp_path).stdout.decode().strip() == str(
        tmp_path.resolve()
    )
    reading, writing = os.pipe()
    try:
        script = f"echo here >&{writing}"
        process.run(["bash", "-c", script], deadline_s=5, pass_fds=[writing])
        assert os.read(reading, 100) == b"here\n"
        assert process.run(["bash", "-c", script], deadline_s=5, ok=None).status != 0
    finally:
        os.close(reading)
        os.close(writing)


def test_ctrl_c_ends_the_program_too(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = (
        "from troupe_tasks import process\n"
        f"script = 'sleep 300 & echo $! > {told}.new; mv {told}.new {told}; wait'\n"
        "process.run(['sh', '-c', script], deadline_s=60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True
    ) as caller:
        until = time.monotonic() + 20
        while not told.exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        caller.send_signal(signal.SIGINT)
        _, stderr = caller.communicate(timeout=20)
    assert b"KeyboardInterrupt" in stderr
    wait_until_gone(int(told.read_text(encoding="ascii")))


def test_ctrl_c_while_a_program_is_starting_waits_until_it_can_be_ended(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = (
        "import os, signal, sh\n"
        "from troupe_tasks import process\n"
        "real = sh.Command.__call__\n"
        "def interrupted(self, *args, **more):\n"
        "    running = real(self, *args, **more)\n"
        f"    open({str(told)!r}, 'w', encoding='ascii').write(str(running.pid))\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return running\n"
        "sh.Command.__call__ = interrupted\n"
        "process.run(['sleep', '300'], deadline_s=60)"
    )
    caller = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, timeout=30, check=False
    )
    assert b"KeyboardInterrupt" in caller.stderr
    wait_until_gone(int(told.read_text(encoding="ascii")))


def test_a_spawned_program_has_a_session_of_its_own_and_no_stdin() -> None:
    code = (
        "import os, sys; print(os.getsid(0) == os.getpid(), sys.stdin.read() == '', 'CANARY' in os.environ)"
    )
    with process.spawn([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        out, _ = child.communicate(timeout=20)
    assert out == b"True True False\n"


def test_a_terminal_program_gives_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("CANARY", "leaks")
    assert process.terminal(["sh", "-c", 'test "$TERM" = xterm && test -z "$CANARY" && exit 7']) == 7


def test_becoming_leaves_nothing_of_the_environment() -> None:
    code = "from troupe_tasks import process; process.become(['env'], env={'EXTRA': '1'})"
    out = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "CANARY": "leaks"},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    assert b"EXTRA=1" in out
    assert b"CANARY" not in out


def test_nothing_else_starts_programs() -> None:
    starts = ("subprocess.Popen(", "subprocess.run(", "import sh\n", "os.system(", "os.popen(", "os.fork(")
    guilty = {
        path.relative_to(ROOT / "troupe_tasks").as_posix()
        for path in (ROOT / "troupe_tasks").rglob("*.py")
        for word in starts
        if word in path.read_text(encoding="utf-8")
    }
    # enter.py is a program of its own that becomes a command inside a sandbox: it forks and execs by its nature.
    # outside.py is one too: it is there for as long as a sandbox, and little of troupe is to stay in memory for it.
    assert guilty == {"process.py", "sandbox/capsule/enter.py", "sandbox/sbx/outside.py"}


@pytest.mark.parametrize(
    "script", ["cat >&2; exit 3", "cat; cat >&2; exit 3", 'x=$(cat); echo "bad input: $x." >&2; exit 3']
)
def test_a_failing_program_that_repeats_its_secret_gives_it_to_nobody(script: str) -> None:
    secret = Secret.typed("canary-0123456789")
    with pytest.raises(ToolFailed) as told:
        process.run(["sh", "-c", script], stdin=secret, deadline_s=10)
    shown = f"{told.value} {told.value.cause} {told.value.done!r} {told.value.hint}"
    assert "canary" not in shown
    assert "(a secret)" in shown
