"""Ask the programs inside a sandbox: their words, and their answers as models. Nothing they say is believed unread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from troupe_tasks.archives.model import FOLDERS, Failure, Manifest, Measured, Surveyed
from troupe_tasks.errors import SandboxFailed
from troupe_tasks.record import agent_of
from troupe_tasks.sandbox.protocol import GUEST_DIR, Sandboxes
from troupe_tasks.text import line

_ANSWER_CAP = 65536
_ASK_S = 60.0
_Answer = TypeVar("_Answer", bound=BaseModel)


def program(name: str, *words: str) -> tuple[str, ...]:
    """Return the words that run one of our programs inside, on the image's Python and nothing else."""
    return ("/usr/bin/python3", "-I", "-S", f"{GUEST_DIR}/{name}.py", *words)


def ask(
    driver: Sandboxes, sandbox_id: str, argv: Sequence[str], form: type[_Answer], *, deadline_s: float
) -> _Answer:
    """Run a program inside and return its answer in its form. Raises SandboxFailed."""
    ran = driver.run(sandbox_id, argv, deadline_s=deadline_s, cwd="/", cap_bytes=_ANSWER_CAP)
    if ran.status != 0:
        last = (ran.stderr.strip().splitlines() or [b"it said nothing"])[-1]
        raise SandboxFailed(f"{sandbox_id} could not tell what it holds", cause=line(last, 300))
    try:
        return form.model_validate_json(ran.stdout)
    except ValidationError as error:
        raise _unreadable(sandbox_id, error) from None


def report(driver: Sandboxes, sandbox_id: str, nonce: str, form: type[_Answer], *, status: int) -> _Answer:
    """Return what the inside says about a stream that ended with status. Raises SandboxFailed."""
    ran = driver.run(
        sandbox_id, program("archive", "told", nonce), deadline_s=_ASK_S, cwd="/", cap_bytes=_ANSWER_CAP
    )
    try:
        if status == 0 and ran.status == 0:
            return form.model_validate_json(ran.stdout)
        why = Failure.model_validate_json(ran.stdout).error if ran.status == 0 else f"status {status}"
    except ValidationError as error:
        raise _unreadable(sandbox_id, error) from None
    raise SandboxFailed(f"{sandbox_id} could not be archived", cause=line(why, 300))


def _unreadable(sandbox_id: str, error: ValidationError) -> SandboxFailed:
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"][:3])
    return SandboxFailed(
        f"what {sandbox_id} tells about itself does not read", cause=line(f"{where}: {first['msg']}", 300),
        hint=f"Its own programs may have meddled: `troupe restart {agent_of(sandbox_id)}` ends them. "
        "Nothing was changed.",
    )  # fmt: skip


def measure(driver: Sandboxes, sandbox_id: str, *, deadline_s: float = 600) -> Measured:
    """Return how much the sandbox holds, by its own account: a plan may rest on it, a cap may not."""
    return ask(driver, sandbox_id, program("archive", "measure", *FOLDERS), Measured, deadline_s=deadline_s)


def survey(driver: Sandboxes, sandbox_id: str, *, deadline_s: float) -> Manifest:
    """Return the manifest of what the sandbox holds now. Raises SandboxFailed when it changed meanwhile."""
    found = ask(driver, sandbox_id, program("archive", "manifest", *FOLDERS), Surveyed, deadline_s=deadline_s)
    if found.changed.count:
        raise changed(sandbox_id, found)
    return found.manifest()


def changed(sandbox_id: str, found: Surveyed) -> SandboxFailed:
    """Return the error for a tree that did not stand still."""
    names = ", ".join(line(name, 100) for name in found.changed.first[:3])
    return SandboxFailed(
        f"{found.changed.count} entries of {sandbox_id} changed while they were read", cause=names,
        hint=f"Something still runs inside: `troupe restart {agent_of(sandbox_id)}` ends it. Then try again.",
    )  # fmt: skip
