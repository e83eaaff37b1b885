"""What goes into a program: nothing before it has said that it is the right one."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import BinaryIO

from troupe_tasks import process
from troupe_tasks.sandbox import stream

_WORD = b"it-is-me\n"
# Looks for a while whether anything comes unasked, then says the word and gives back what it gets.
_PATIENT = """\
import select, sys
early = select.select([0], [], [], 0.3)[0]
sys.stderr.write("noise\\nit-is-"); sys.stderr.flush()
sys.stderr.write("me\\n"); sys.stderr.flush()
sys.stdout.buffer.write(b"early" if early else sys.stdin.buffer.read())
"""


class Untouched(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        raise AssertionError("it was read")


def pumped(code: str, source: BinaryIO | bytes, *, awaited: bytes = _WORD) -> tuple[stream.Pumped, bytes]:
    pipe, kept = subprocess.PIPE, stream.Kept()
    child = process.spawn([sys.executable, "-I", "-S", "-c", code], stdin=pipe, stdout=pipe, stderr=pipe)
    flow = stream.Flow(deadline_s=30, cap_bytes=1 << 24, source=source, sink=kept)
    done = stream.pump(child, flow, awaited=awaited)
    return done, kept.value()


def test_all_goes_in_once_the_word_is_said_and_nothing_before() -> None:
    much = bytes(range(256)) * 20_000
    for source in (much, io.BytesIO(much)):
        done, out = pumped(_PATIENT, source)
        assert (done.status, out) == (0, much)
        assert done.stderr == b"noise\n" + _WORD
    assert pumped(_PATIENT, b"x", awaited=b"")[1] == b"early"


def test_an_end_is_passed_on_after_the_word_too() -> None:
    assert pumped(_PATIENT, b"") == pumped(_PATIENT, io.BytesIO())


def test_one_that_never_says_the_word_gets_nothing() -> None:
    done, out = pumped("import sys; sys.exit('no such sandbox')", Untouched())  # type: ignore[arg-type]
    assert (done.status, done.stderr, out) == (1, b"no such sandbox\n", b"")
