"""Secrets: given away by one method and by nothing else."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from troupe_tasks import process
from troupe_tasks.errors import UsageError
from troupe_tasks.secret import LIMIT_BYTES, Secret, fault_of

ROOT = Path(__file__).resolve().parents[2]
CANARY = "sk-canary-0123456789"


class Holder(BaseModel):
    """A model that somebody put a secret into."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    secret: Secret


@dataclasses.dataclass
class Plain:
    """The same as a dataclass."""

    secret: Secret


def traceback_with_locals(secret: Secret) -> str:
    try:
        raise RuntimeError(secret)
    except RuntimeError as error:
        return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


def test_a_secret_is_shown_by_nothing() -> None:
    secret = Secret.typed(CANARY)
    shown = [
        repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", f"{secret:>40}",
        repr([secret]), repr(Plain(secret)), repr(Holder(secret=secret)), str(Holder(secret=secret).model_dump()),
    ]  # fmt: skip
    assert not [text for text in shown if "canary" in text]
    assert not hasattr(secret, "__dict__")
    assert "canary" not in traceback_with_locals(secret)


@pytest.mark.parametrize(
    "leak",
    [
        pickle.dumps, copy.copy, copy.deepcopy, json.dumps, bytes, iter, hash, lambda s: s.__getstate__(),
        lambda s: Holder(secret=s).model_dump_json(), lambda s: dataclasses.asdict(Plain(s)),
    ],
)  # fmt: skip
def test_a_secret_is_neither_copied_nor_dumped(leak: object) -> None:
    with pytest.raises(Exception) as caught:
        leak(Secret.typed(CANARY))  # type: ignore[operator]
    assert "canary" not in str(caught.value)


def test_a_secret_is_compared_by_its_bytes() -> None:
    assert Secret(b"a") == Secret(b"a")
    assert Secret(b"a") != Secret(b"b")
    assert Secret(b"a") != b"a"


def test_wiping_overwrites_the_bytes_where_they_are() -> None:
    secret = Secret(CANARY.encode())
    held = secret._held
    with secret as same:
        assert same.reveal() == CANARY.encode()
    assert bytes(held or b"") == bytes(len(CANARY))
    with pytest.raises(ValueError, match="wiped"):
        secret.reveal()
    secret.wipe()
    again = Secret(CANARY.encode())
    held = again._held
    del again
    assert bytes(held or b"") == bytes(len(CANARY))


FAULTS = {
    "it is empty", "it has N bytes, and at most N are allowed", "it is not text", "it has more than one line",
    "it begins or ends with a blank or a line's end", "it holds a control character or an invisible one",
}  # fmt: skip


@given(st.text())
def test_what_is_typed_is_kept_as_it_is_or_refused_unseen(text: str) -> None:
    fault = fault_of(text.encode("utf-8", "surrogatepass"))
    if not fault:
        assert Secret.typed(text).reveal().decode() == text
        assert text.strip() == text != ""
        return
    assert re.sub(r"[0-9]+", "N", fault) in FAULTS
    with pytest.raises(UsageError) as caught:
        Secret.typed(text)
    assert str(caught.value) == f"that can't be a key: {fault}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"), ("x" * (LIMIT_BYTES + 1), "at most 4096"), ("é" * LIMIT_BYTES, "8192 bytes"), ("key\n", "blank"),
        (" key", "blank"), ("key\t", "blank"), ("a\nb", "more than one line"), ("a\u2028b", "more than one line"),
        ("a\x00b", "control"), ("a\x7fb", "control"), ("a\u200bb", "invisible"), ("\ufeffkey", "invisible"),
        ("a\ud800b", "not text"),
    ],
)  # fmt: skip
def test_what_can_not_be_a_key_is_told(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Secret.typed(text)


def test_the_longest_key_is_taken() -> None:
    assert len(Secret.typed("x" * LIMIT_BYTES).reveal()) == LIMIT_BYTES


def test_programs_get_a_secret_by_their_stdin_alone() -> None:
    secret = Secret.typed(CANARY)
    assert process.run(["cat"], deadline_s=5, stdin=secret).stdout == CANARY.encode()
    for call in (
        lambda: process.run(["echo", secret], deadline_s=5),  # type: ignore[list-item]
        lambda: process.run(["env"], deadline_s=5, env={"KEY": secret}),  # type: ignore[dict-item]
        lambda: process.spawn(["env"], env={"KEY": secret}),  # type: ignore[dict-item]
    ):
        with pytest.raises(TypeError, match="is a Secret"):
            call()


NO_CORE = """
import os, resource, sys
from pathlib import Path
from troupe_tasks import process
from troupe_tasks.secret import Secret, no_core_dumps
process.run(["true"], deadline_s=20)  # what it imports may be root's alone
if os.geteuid() == 0:
    os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
no_core_dumps()
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
assert process.run(["cat"], deadline_s=20, stdin=Secret(b"through")).stdout == b"through"
core = process.run(["sh", "-c", "ulimit -c"], deadline_s=20).stdout
print(Path("/proc/self/environ").stat().st_uid, core.decode().strip(), flush=True)
os.abort()
"""


def test_a_process_that_holds_keys_leaves_no_core_and_is_closed_to_others(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_CORE], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False,
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), "PATH": process.SYSTEM_PATH},
    )  # fmt: skip
    # Its files in /proc are root's: the kernel lets no other process of its user look in.
    assert done.stdout.split() == ["0", "0"], done.stderr
    assert done.returncode == -6
