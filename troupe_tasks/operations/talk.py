"""Talk to a running agent: one turn, or the operator's own terminal session."""

from __future__ import annotations

from typing import TextIO

from troupe_tasks import record as records
from troupe_tasks.errors import NotRunning, SandboxFailed, UsageError
from troupe_tasks.journal import Journal
from troupe_tasks.kits import compose, pins
from troupe_tasks.kits.model import Kit
from troupe_tasks.operations.house import House
from troupe_tasks.sandbox.protocol import Sandboxes, State
from troupe_tasks.text import line

# One argument of a program is at most 128 KiB (execve(2), MAX_ARG_STRLEN).
MESSAGE_CAP = 100_000
REPLY_CAP = 4 << 20
TURN_DEADLINE_S = 1800


def from_stdin(stdin: TextIO) -> str:
    """Return the message that was piped in; nothing on a terminal."""
    if stdin.isatty():
        return ""
    text = stdin.read(MESSAGE_CAP + 1).strip()
    if not text:
        raise UsageError(
            "there is no message", hint="Give one as an argument or on stdin, or run this on a terminal."
        )
    return text


def say(house: House, agent_id: str, message: str) -> bytes:
    """Give the agent one message and return its reply, as it came: hostile until it is escaped."""
    if len(message.encode()) > MESSAGE_CAP or "\0" in message:
        raise UsageError(f"a message is text of at most {MESSAGE_CAP} bytes")
    driver, sandbox, kit = _running(house, agent_id)
    ran = driver.run(sandbox, compose.turn(kit, message), deadline_s=TURN_DEADLINE_S, cap_bytes=REPLY_CAP)
    if ran.status != 0:
        said = line(ran.stdout.strip() or ran.stderr.strip(), 500)
        raise SandboxFailed(f"{agent_id} could not answer", cause=said)
    return ran.stdout


def converse(house: House, agent_id: str) -> int:
    """Give the operator's terminal to the agent's own chat, and return how it ended."""
    driver, sandbox, kit = _running(house, agent_id)
    return driver.attach(sandbox, kit.commands.chat)


def _refuse_in_between(book: Journal) -> None:
    """Raise Unfinished while its sandbox is being archived, or was: what is said now would come along nowhere."""
    opened = book.unfinished()
    if opened is not None and "plan" in opened.done and "go-on" not in opened.done:
        book.refuse_unfinished()


def _way_up(book: Journal, agent_id: str) -> str:
    """Return what would have it run: the end of what is unfinished, which keeps a start out, or a start."""
    opened = book.unfinished()
    if opened is not None and not opened.only_looked:
        return f"It has an unfinished {opened.operation}; finish it: `{opened.finish}`."
    return f"`troupe start {agent_id}` starts it."


def _running(house: House, agent_id: str) -> tuple[Sandboxes, str, Kit]:
    record = records.load(house.paths, agent_id)
    book = Journal(house.paths, agent_id)
    _refuse_in_between(book)
    driver = house.driver(record.driver)
    info = driver.list().find(record.sandbox)
    if info is None or info.state is not State.RUNNING:
        raise NotRunning(f"{agent_id} is not running", hint=_way_up(book, agent_id))
    return driver, record.sandbox, pins.pinned(house.paths, record.kit.type, record.kit.version)
