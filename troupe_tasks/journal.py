"""Receipts: what each step of an operation did, durable before the next step starts.

An agent's receipts are numbered files, each holding the digest of the one before it. An operation starts with
a `begin` receipt and ends with an `end`; between them stands one receipt a finished step. Run the command
again after any interruption and it goes on after the last receipt, so every step must be safe to run twice.
An operation that is refused before it has changed anything ends with `abandoned`: it keeps nothing else out. So does
one that fails and may be left wherever it stopped, as a start may. One that was killed while it still looked gives way
to whatever is asked for next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from troupe_tasks import durable
from troupe_tasks.errors import DiskFull, Tampered, Unfinished
from troupe_tasks.paths import Paths

BEGIN, END, ABANDONED = "begin", "end", "abandoned"
_FIRST = "0" * 64
Job = TypeVar("Job")
Decided = Mapping[str, JsonValue]


class Receipt(BaseModel):
    """One durable fact: at a time, a step of an operation was done and decided something (never a secret)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    number: int = Field(ge=1, le=999_999)
    operation: str = Field(pattern=r"^[a-z-]{1,40}$")
    step: str = Field(pattern=r"^[a-z-]{1,40}$")
    at: str
    decided: dict[str, JsonValue]
    previous: str = Field(pattern=r"^[0-9a-f]{64}$")
    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")  # of all of the above

    def sealed(self) -> Receipt:
        """Return the receipt with its own digest, so that even the last one can't be altered unseen."""
        body = self.model_dump_json(exclude={"digest"})
        return self.model_copy(update={"digest": hashlib.sha256(body.encode()).hexdigest()})

    def to_bytes(self) -> bytes:
        """Return the receipt's file, the one way it is written."""
        return self.model_dump_json(indent=1).encode() + b"\n"


@dataclass(frozen=True)
class Step(Generic[Job]):
    """A named part of an operation: do(job, what earlier steps decided) returns what it decided."""

    name: str
    do: Callable[[Job, Mapping[str, Decided]], Decided]
    doing: str  # shown to the person, e.g. "making the sandbox"
    only_looks: bool = (
        False  # when it fails nothing has been changed: an operation that ends in it never began
    )


@dataclass(frozen=True)
class Open:
    """An operation that has begun and not ended.

    only_looked: not even all of its looking is done, so nothing was changed yet.
    """

    operation: str
    inputs: Decided
    finish: str
    done: Mapping[str, Decided]
    only_looked: bool = False


def _nothing(point: str) -> None:
    """Do nothing: the crash suite puts its own function here, to end the process at a point."""


reached: Callable[[str], None] = _nothing


class Journal:
    """One agent's receipts; the caller holds the agent's lock while it writes."""

    def __init__(self, paths: Paths, agent_id: str) -> None:
        self._folder = paths.receipts(agent_id)
        self._agent = agent_id
        self._receipts, self._last = self._load()

    @property
    def receipts(self) -> Sequence[Receipt]:
        """Return every receipt, oldest first."""
        return tuple(self._receipts)

    def unfinished(self) -> Open | None:
        """Return the operation that was interrupted, if one was."""
        started: Receipt | None = None
        done: dict[str, Decided] = {}
        for receipt in self._receipts:
            if receipt.step == BEGIN:
                started, done = receipt, {}
            elif receipt.step in (END, ABANDONED):
                started = None
            else:
                done[receipt.step] = receipt.decided
        if started is None:
            return None
        inputs = started.decided.get("inputs")
        if not isinstance(inputs, dict):
            raise Tampered(f"receipt {started.number} of {self._agent} holds no inputs")
        looks = started.decided.get("looks")
        only_looked = isinstance(looks, list) and done.keys() < {str(name) for name in looks}
        return Open(started.operation, inputs, str(started.decided.get("finish", "")), done, only_looked)

    def open(
        self,
        operation: str,
        *,
        inputs: Decided,
        finish: str,
        steps: Sequence[Step[Any]] = (),
        supersedes: bool = False,
    ) -> Open:
        """Begin an operation, or go on with the same one; another one that is unfinished is refused.

        inputs is what the person asked for; finish is the command that ends it; steps are what it will do; supersedes
        gives up another, which one that has only looked needs not.
        """
        pending = self.unfinished()
        if (
            pending is not None
            and pending.operation == operation
            and (supersedes or pending.inputs == inputs)
        ):
            return pending
        if pending is not None and not supersedes and not pending.only_looked:
            raise self._refusal(pending, operation)
        # In the same receipt: between two of them neither would be unfinished, whatever is half done.
        gives_up = {"gives_up": pending.operation} if pending is not None else {}
        names: list[JsonValue] = [step.name for step in steps if step.only_looks]
        looks: Decided = {"looks": names} if names else {}
        self.write(operation, BEGIN, {"inputs": dict(inputs), "finish": finish, **looks, **gives_up})
        return Open(operation, inputs, finish, {})

    def refuse_unfinished(self) -> None:
        """Raise Unfinished when an operation was interrupted: what is about to be done has no steps of its own."""
        self.refuse_others("")

    def refuse_others(self, operation: str) -> None:
        """Raise Unfinished when another operation was interrupted: what it has not made yet can't be read."""
        pending = self.unfinished()
        if pending is not None and pending.operation != operation and not pending.only_looked:
            raise self._refusal(pending, operation)

    def _refusal(self, pending: Open, operation: str) -> Unfinished:
        other = pending.operation if pending.operation != operation else f"{operation} with other settings"
        return Unfinished(
            f"{self._agent} has an unfinished {other}",
            hint=f"Finish it: `{pending.finish}`. Or give the agent up: `troupe delete {self._agent}`.",
        )

    def write(self, operation: str, step: str, decided: Decided) -> Receipt:
        """Add a receipt; it is on the disk when this returns."""
        durable.make_private_dir(self._folder)
        receipt = Receipt(
            number=len(self._receipts) + 1,
            operation=operation,
            step=step,
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            decided=dict(decided),
            previous=self._last,
        ).sealed()
        data = receipt.to_bytes()
        durable.write(self._folder / f"{receipt.number:06d}-{operation}-{step}.json", data)
        self._receipts.append(receipt)
        self._last = hashlib.sha256(data).hexdigest()
        return receipt

    def _load(self) -> tuple[list[Receipt], str]:
        receipts: list[Receipt] = []
        last = _FIRST
        names = sorted(p.name for p in self._folder.iterdir()) if self._folder.is_dir() else []
        for name in names:
            if name.startswith("."):
                continue  # a temporary file of a write that was cut; durable.write never trusts one
            data = durable.read_private(self._folder / name)
            try:
                receipt = Receipt.model_validate_json(data)
            except ValidationError as error:
                raise self._tampered(name, "it is not a receipt") from error
            if data != receipt.sealed().to_bytes():
                raise self._tampered(name, "it was altered: its own digest is wrong")
            if receipt.previous != last or receipt.number != len(receipts) + 1:
                raise self._tampered(
                    name, "its digest chain is broken: it or the one before it was altered or removed"
                )
            if name != f"{receipt.number:06d}-{receipt.operation}-{receipt.step}.json":
                raise self._tampered(name, "it was renamed")
            receipts.append(receipt)
            last = hashlib.sha256(data).hexdigest()
        return receipts, last

    def _tampered(self, name: str, cause: str) -> Tampered:
        return Tampered(f"the receipt {self._folder / name} can't be trusted", cause=cause)


def perform(
    journal: Journal,
    opened: Open,
    job: Job,
    steps: Sequence[Step[Job]],
    *,
    told: Callable[[Step[Any]], Any] = lambda _step: None,
    may_be_left: bool = False,
) -> Mapping[str, Decided]:
    """Run the steps that have no receipt yet, each leaving one, and return what every step decided.

    may_be_left: whatever its steps did is a state like any other, so an error ends the operation.
    """
    done: dict[str, Decided] = dict(opened.done)
    for step in steps:
        if step.name in done:
            continue
        told(step)
        reached(f"{opened.operation}/{step.name}/before")
        try:
            decided = step.do(job, done)
        except (Exception, KeyboardInterrupt) as error:
            looked = step.only_looks and all(other.only_looks for other in steps if other.name in done)
            if looked or (may_be_left and isinstance(error, Exception)):
                with suppress(DiskFull):  # then the person hears of what stood in the way first
                    how = "was refused" if looked else "failed"
                    journal.write(opened.operation, ABANDONED, {"by": f"{opened.operation}, which {how}"})
            raise
        reached(f"{opened.operation}/{step.name}/done")
        journal.write(opened.operation, step.name, decided)
        done[step.name] = decided
        reached(f"{opened.operation}/{step.name}/after")
    journal.write(opened.operation, END, {})
    return done
