"""What chat refuses before anything reaches an agent."""

from __future__ import annotations

import io

import pytest

from troupe_tasks.errors import NotFound, UsageError
from troupe_tasks.operations import talk
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths


def test_a_message_on_stdin_is_taken_and_an_empty_one_is_refused() -> None:
    assert talk.from_stdin(io.StringIO("hello\n")) == "hello"
    with pytest.raises(UsageError, match="no message"):
        talk.from_stdin(io.StringIO(" \n"))


@pytest.mark.parametrize("message", ["x" * 100_001, "é" * 60_000, "a\0b"])
def test_a_message_that_no_argument_can_carry_is_refused(message: str) -> None:
    with pytest.raises(UsageError, match="at most"):
        talk.say(House(Paths.from_env()), "jane", message)


def test_an_agent_that_is_not_there_is_told() -> None:
    with pytest.raises(NotFound, match="jane"):
        talk.say(House(Paths.from_env()), "jane", "hello")
