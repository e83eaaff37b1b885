"""Hostile programs behind the real relay, and what reaches its log."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from troupe_tasks.services import relay
from troupe_tasks.text import escape

_FLOOD_BYTES = 40_000_000


def program(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", f"import os, signal, sys, time\n{code}")


def run(code: str, log: Path, *, whole_group: bool = True) -> tuple[int, str]:
    """Run a program behind the relay to its end; return the relay's status and the log."""
    with log.open("wb") as file:
        argv = relay.before(program(code), whole_group=whole_group)
        done = subprocess.run(argv, stdout=file, stderr=file, timeout=60, check=False)
    return done.returncode, log.read_text(encoding="utf-8")


@contextmanager
def started(argv: tuple[str, ...], stdout: int | None = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(argv, stdout=stdout, start_new_session=True) as process:
        try:
            yield process
        finally:
            # Also what the relay left behind, so that a failed test leaves nothing.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    return not Path("/proc", str(pid), "exe").exists()


def until(what: Callable[[], bool], deadline_s: float = 20) -> None:
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, "the awaited did not happen"
        time.sleep(0.02)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "gateway.log"


def peak_kib(pid: int) -> int:
    status = Path("/proc", str(pid), "status").read_text(encoding="ascii")
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0])


def left_out(text: str) -> int:
    return sum(map(int, re.findall(r"^… (\d+) bytes left out$", text, re.MULTILINE)))


def test_every_line_is_escaped_once_and_both_streams_keep_their_order(log: Path) -> None:
    raw = (
        b"plain \xc3\xa9\ttab\n\x1b[2J\x1b]0;title\x07\r\n\xff\xfe\xc3\n\xe2\x80\xae\\x1b \x9b31m\nno newline"
    )
    code = f"os.write(1, {raw!r})\nos.write(2, b' and an error')\nos.write(1, b'\\nlast')"
    status, text = run(code, log)
    assert status == 0
    assert text == (
        "plain é\ttab\n\\x1b[2J\\x1b]0;title\\x07\\x0d\n\\xff\\xfe\\xc3\n\\u202e\\x1b \\x9b31m\n"
        "no newline and an error\nlast\n"
    )
    assert escape(text) == text


def test_a_character_that_comes_in_two_pieces_stays_whole(log: Path) -> None:
    code = "os.write(1, b'caf\\xc3')\ntime.sleep(0.2)\nos.write(1, b'\\xa9\\n')"
    assert run(code, log) == (0, "café\n")


def test_a_long_line_is_cut_and_counted(log: Path) -> None:
    code = "for _ in range(1000): os.write(1, b'x' * 10_000)\nos.write(1, b'\\nnext\\n')"
    _, text = run(code, log)
    cut, following = text.splitlines()
    assert cut == "x" * relay.LINE_BYTES + f"… ({10_000_000 - relay.LINE_BYTES} more bytes)"
    assert following == "next"


def test_a_long_line_without_an_end_is_cut_too(log: Path) -> None:
    _, text = run("os.write(1, b'\\x01' * 100_000)", log)
    assert text == "\\x01" * relay.LINE_BYTES + f"… ({100_000 - relay.LINE_BYTES} more bytes)\n"


def test_a_flood_costs_a_counted_line_and_every_byte_is_accounted_for(log: Path) -> None:
    code = f"line = b'y' * 999 + b'\\n'\nfor _ in range({_FLOOD_BYTES // 1000}): os.write(1, line)"
    began = time.monotonic()
    _, text = run(code, log)
    allowed = relay.BURST_BYTES + (time.monotonic() - began) * relay.RATE_BYTES_S + (128 << 10)
    assert log.stat().st_size <= allowed
    assert log.stat().st_size >= relay.BURST_BYTES / 2
    shown = text.count("y") + len(re.findall(r"^y+$", text, re.MULTILINE))
    # A line that was broken off at either end of a gap has a newline of the relay's own.
    assert shown + left_out(text) == pytest.approx(_FLOOD_BYTES, abs=10)


def test_the_log_goes_on_when_the_flood_is_over(log: Path) -> None:
    flood = "for _ in range(3000): os.write(1, b'z' * 999 + b'\\n')"
    told = f"while b' bytes left out' not in open({str(log)!r}, 'rb').read(): time.sleep(0.02)"
    _, text = run(f"{flood}\n{told}\nos.write(1, b'after the flood\\n')", log)
    assert text.endswith("z\nafter the flood\n")
    assert left_out(text) > 1_000_000


def test_the_last_words_of_one_that_ends_in_a_flood_are_kept(log: Path) -> None:
    code = (
        "for _ in range(5000): os.write(1, b'r' * 999 + b'\\n')\nos.write(1, b'last words\\n')\nos._exit(8)"
    )
    status, text = run(code, log)
    assert status == 8
    assert re.search(r"^… \d+ bytes left out\n(r{999}\n){8}last words\n\Z", text, re.MULTILINE)


def test_a_keeper_that_does_not_read_makes_nobody_wait() -> None:
    code = "for _ in range(20_000): os.write(1, b'w' * 999 + b'\\n')\nraise SystemExit(9)"
    with started(relay.before(program(code), whole_group=True)) as process:
        assert process.wait(timeout=30) == 9


def test_a_keeper_that_is_gone_does_not_end_the_program(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    code = f"for _ in range(200): os.write(1, b'v\\n'); time.sleep(0.005)\nopen({str(proof)!r}, 'w').close()"
    with started(relay.before(program(code), whole_group=True)) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=30) == 0
    assert proof.exists()


def test_a_full_disk_does_not_end_the_program() -> None:
    with Path("/dev/full").open("wb") as full:
        argv = relay.before(program("for _ in range(500): os.write(1, b'u' * 99 + b'\\n')"), whole_group=True)
        assert subprocess.run(argv, stdout=full, timeout=30, check=False).returncode == 0


def test_a_disk_with_room_again_is_told_what_it_missed(log: Path) -> None:
    # Its own look at the log could miss the moment when it is full.
    emptied = log.with_name("emptied")
    waits = f"while not os.path.exists({str(emptied)!r}): time.sleep(0.01)"
    code = f"os.write(1, (b't' * 99 + b'\\n') * 100)\n{waits}\nos.write(1, b'room again\\n')"
    limit = ["prlimit", "--fsize=4096", "--"]
    with log.open("ab") as file:
        argv = (*limit, *relay.before(program(code), whole_group=True))
        with started(argv, stdout=file.fileno()) as process:
            until(lambda: log.stat().st_size == 4096)
            os.truncate(log, 0)
            emptied.touch()
            assert process.wait(timeout=30) == 0
    text = log.read_text(encoding="utf-8")
    assert text.endswith(" bytes left out\nroom again\n")
    assert left_out(text) >= 10_000 - 4096


def test_a_program_that_closes_its_output_is_still_waited_for(log: Path) -> None:
    code = "os.write(1, b'bye\\n')\nos.close(1)\nos.close(2)\ntime.sleep(0.5)\nos._exit(3)"
    assert run(code, log) == (3, "bye\n")


def test_a_child_that_keeps_the_pipe_is_not_waited_for_long(log: Path) -> None:
    # The program ends only once its child has spoken.
    code = (
        "reads, writes = os.pipe()\nif os.fork() == 0:\n    print(os.getpid(), flush=True)\n"
        "    os.write(writes, b'x')\n    time.sleep(60)\nos.read(reads, 1)\nos._exit(4)"
    )
    argv = relay.before(program(code), whole_group=True)
    with log.open("wb") as file, started(argv, stdout=file.fileno()) as process:
        began = time.monotonic()
        assert process.wait(timeout=30) == 4
        assert time.monotonic() - began < 10
        child = int(log.read_text(encoding="ascii"))
        assert not is_gone(child)
    until(lambda: is_gone(child))


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_death_by_signal_is_passed_on(log: Path, number: signal.Signals) -> None:
    code = f"signal.signal(signal.SIGINT, signal.SIG_DFL)\nos.write(1, b'dying')\nos.kill(os.getpid(), {number:d})"
    assert run(code, log) == (128 + number, "dying\n")


def test_a_program_that_is_not_there_is_told(log: Path) -> None:
    with log.open("wb") as file:
        argv = relay.before(("/nowhere/at all",), whole_group=True)
        assert subprocess.run(argv, stderr=file, timeout=30, check=False).returncode == 127
    assert "/nowhere/at all: No such file" in log.read_text(encoding="utf-8")


_COUNTS = (
    "got = []\nsignal.signal(signal.SIGINT, lambda *_: got.append(1))\nprint('up', flush=True)\n"
    "end = time.monotonic() + 20\nwhile not got and time.monotonic() < end: time.sleep(0.01)\n"
    "time.sleep(0.5)\nprint('asked', len(got), flush=True)\nraise SystemExit(5)"
)


@pytest.mark.parametrize("whole_group", [True, False], ids=["to the group", "to the relay alone"])
def test_a_stop_reaches_the_program_once_and_its_last_words_the_log(log: Path, whole_group: bool) -> None:
    argv = relay.before(program(_COUNTS), whole_group=whole_group)
    with log.open("wb") as file, started(argv, stdout=file.fileno()) as process:
        until(lambda: log.read_text(encoding="ascii") == "up\n")
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) == 5
    assert log.read_text(encoding="ascii") == "up\nasked 1\n"


def test_the_lock_is_the_programs_alone(tmp_path: Path, log: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    handle = os.open(lock, os.O_RDONLY)
    argv = relay.before(program("print(os.getpid(), flush=True)\ntime.sleep(60)"), whole_group=True)
    with log.open("wb") as file:
        process = subprocess.Popen(argv, stdout=file, pass_fds=[handle], start_new_session=True)
    os.close(handle)
    try:
        until(lambda: log.read_text(encoding="ascii").endswith("\n"))
        child = int(log.read_text(encoding="ascii"))
        found = {
            pid: [os.readlink(fd) for fd in Path("/proc", str(pid), "fd").iterdir()]
            for pid in (process.pid, child)
        }
        assert str(lock) not in found[process.pid]
        assert str(lock) in found[child]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_it_stays_small(log: Path) -> None:
    flood = "for _ in range(100): os.write(1, b'\\xff' * 90_000 + b'\\n')"
    argv = relay.before(program(f"{flood}\nprint('up', flush=True)\ntime.sleep(60)"), whole_group=True)
    with log.open("wb") as file, started(argv, stdout=file.fileno()) as process:
        until(lambda: b" bytes left out\n" in log.read_bytes())
        relayed_kib = peak_kib(process.pid)
    with started(program("print('up', flush=True)\ntime.sleep(60)")) as bare:
        assert bare.stdout is not None
        bare.stdout.readline()
        bare_kib = peak_kib(bare.pid)
    assert relayed_kib - bare_kib < 4 << 10
