"""What the self-test makes of an answer from inside, which may say anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from troupe_tasks import record as records
from troupe_tasks.errors import SandboxTimeout
from troupe_tasks.kits import local
from troupe_tasks.operations.house import House
from troupe_tasks.operations.selftest import self_test
from troupe_tasks.paths import Paths
from troupe_tasks.record import KitPin, Record, SelfTest, Sizes
from troupe_tasks.sandbox.protocol import Ran

RECORD = Record(
    id="jane", name="Jane", kit=KitPin(type="hermes", version="0.1.0"), driver="capsule", isolation="gvisor",
    rehearsal=True, key_tier="none", sizes=Sizes(cpus=1, memory_mib=512, storage_mib=1024), created_at="now",
)  # fmt: skip

# What is shown as itself, and what escaping makes longer.
_SIGNS = st.sampled_from("ab é\n\t\x1b\u202e\u2028\U000e0001")


class Inside:
    """A sandbox that answers what it is told to."""

    def __init__(self, answer: Ran | Exception) -> None:
        self.answer = answer

    def run(self, sandbox_id: str, argv: Sequence[str], **given: Any) -> Ran:
        assert given["cap_bytes"] <= 64 << 10
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class OneRoom(House):
    """A house whose driver is the given one."""

    def driver(self, name: str | None = None, *, isolation: str | None = None) -> Any:
        return cast("Any", self.inside)

    inside: Inside


def judged(answer: Ran | Exception) -> SelfTest:
    paths = Paths.from_env()
    records.save(paths, RECORD)
    house = OneRoom(paths)
    object.__setattr__(house, "inside", Inside(answer))
    result = self_test(house, RECORD, local.find("hermes", Path(__file__).parents[2] / "kits"))
    assert records.last_self_test(paths, "jane") == result
    return result


def said(**fields: object) -> Ran:
    turn: Mapping[str, object] = {"completed": False, "model": "m", "reply": "", "error": "", **fields}
    return Ran(status=0, stdout=json.dumps(turn).encode(), stderr=b"", truncated=False)


def test_a_completed_turn_passes_and_its_reply_is_kept_escaped() -> None:
    result = judged(said(completed=True, reply="hello \x1b[31mred\x1b]0;title\x07"))
    assert result.passed
    assert "\x1b" not in result.reply
    assert "\\x1b[31mred" in result.reply


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("HTTP 401: Incorrect API key provided", "refused the key"),
        ("HTTP 404: model_not_found", "model's name"),
        ("HTTP 429: Rate limit reached", "limits this key"),
        ("API call failed after 3 retries: Connection error.", "the network"),
        ("HTTP 500: Internal server error", "the provider itself failed"),
        ("something else", "see what it said"),
    ],
)
def test_a_failed_turn_names_the_likely_cause(error: str, cause: str) -> None:
    result = judged(said(error=error))
    assert not result.passed
    assert cause in result.cause
    assert error in result.cause


@pytest.mark.parametrize(
    "stdout",
    [
        b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"completed": 1, "model": "m", "reply": "", "error": ""}',
        b'{"completed": true, "model": "m", "reply": "", "error": "", "more": 1}', b"{" * 60_000,
        json.dumps({"completed": True, "model": "m", "reply": "x" * 5000, "error": ""}).encode(),
    ],
)  # fmt: skip
def test_an_answer_of_the_wrong_form_is_a_failure_whatever_it_claims(stdout: bytes) -> None:
    result = judged(Ran(status=0, stdout=stdout, stderr=b"\x1b[2J", truncated=False))
    assert not result.passed
    assert "\x1b" not in result.cause


@given(
    completed=st.booleans(), model=st.text(_SIGNS, max_size=200), reply=st.text(_SIGNS, max_size=4000),
    error=st.text(_SIGNS, max_size=4000),
)  # fmt: skip
@example(completed=True, model="m" * 199 + "\u202e", reply="\u202e" * 4000, error="")
@example(completed=False, model="\u202e" * 200, reply="", error="\u202e" * 4000)
def test_an_answer_of_the_right_form_is_judged_whatever_it_says(
    completed: bool, model: str, reply: str, error: str
) -> None:
    result = judged(said(completed=completed, model=model, reply=reply, error=error))
    assert result.passed is completed
    assert SelfTest.model_validate_json(result.model_dump_json()) == result


@given(stdout=st.binary(max_size=4000), stderr=st.binary(max_size=4000))
@example(stdout=b"", stderr=b"\xff" * 4000)
def test_whatever_the_program_says_there_is_a_result(stdout: bytes, stderr: bytes) -> None:
    assert not judged(Ran(status=-9, stdout=stdout, stderr=stderr, truncated=True)).passed


def test_no_answer_in_time_is_a_failure() -> None:
    assert "no answer within" in judged(SandboxTimeout("late")).cause
