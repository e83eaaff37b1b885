"""One message through the agent's own Hermes and model, judged on transport alone: the model completed a turn."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from troupe_tasks import record as records
from troupe_tasks.errors import SandboxTimeout
from troupe_tasks.kits.model import Kit
from troupe_tasks.operations.house import House
from troupe_tasks.record import Record, SelfTest
from troupe_tasks.sandbox.protocol import GUEST_DIR
from troupe_tasks.text import escape, line

PROMPT = "Say in one short sentence that you are ready."
DEADLINE_S = 180
# What a failed turn says, and what most likely is behind it.
_LIKELY = (
    (("401", "403", "unauthorized", "invalid api key", "incorrect api key"), "the provider refused the key"),
    (("404", "model_not_found", "does not exist"), "the provider does not know the model's name"),
    (("429", "rate limit", "quota"), "the provider limits this key; wait, or check its plan"),
    (
        ("connection", "timed out", "timeout", "502", "503", "504", "proxy"),
        "the network: the provider was not reached",
    ),
    (("500", "internal server error"), "the provider itself failed"),
)


class _Turn(BaseModel):
    """What guest/turn.py answers; everything in it comes from a sandbox."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    completed: bool
    model: str = Field(max_length=200)
    reply: str = Field(max_length=4000)
    error: str = Field(max_length=4000)


def self_test(house: House, record: Record, kit: Kit) -> SelfTest:
    """Run the self-test, keep its result beside the record, and return it."""
    result = judged(house, record, kit)
    records.save_self_test(house.paths, record.id, result)
    return result


def judged(house: House, record: Record, kit: Kit) -> SelfTest:
    """Send one message in the sandbox that the record names, and return how it went."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    command = ["/usr/bin/python3", "-I", "-S", f"{GUEST_DIR}/turn.py", *kit.commands.self_test]
    try:
        ran = house.driver(record.driver).run(
            record.sandbox, command, stdin=PROMPT.encode(), deadline_s=DEADLINE_S, cap_bytes=64 << 10
        )
    except SandboxTimeout:
        return SelfTest(at=at, passed=False, cause=f"no answer within {DEADLINE_S} s")
    try:
        turn = _Turn.model_validate_json(ran.stdout)
    except ValidationError:
        said = line(ran.stderr or ran.stdout, 300)
        return SelfTest(
            at=at, passed=False, cause=f"the agent's program ended with status {ran.status}: {said}"
        )
    if not turn.completed:
        return SelfTest(at=at, passed=False, cause=_cause(turn.error), model=line(turn.model))
    return SelfTest(at=at, passed=True, reply=escape(turn.reply)[:4000], model=line(turn.model))


def _cause(error: str) -> str:
    small = error.lower()
    likely = next(
        (cause for words, cause in _LIKELY if any(word in small for word in words)), "see what it said"
    )
    return f"{likely}: {line(error, 300)}"
