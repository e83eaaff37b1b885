"""What commands show and ask: JSON or text on stdout, progress and questions on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel


def show_json(value: BaseModel | list[Any] | dict[str, Any]) -> None:
    """Print a value as JSON, one document."""
    import json

    plain = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    print(json.dumps(plain, indent=2, ensure_ascii=True))


class Progress:
    """Long work's progress: a spinner beside the step at hand on a terminal, a line a step elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._fancy = not quiet and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._status: Any = None

    def step(self, doing: str) -> None:
        """Say what is being done now; names from a sandbox may be part of it."""
        if not self._quiet:
            with suppress(OSError):  # no line is worth an interruption of the work that it tells of
                self._say(doing)

    def _say(self, doing: str) -> None:
        from troupe_tasks.text import escape

        if not self._fancy:
            print(f"- {escape(doing)}", file=sys.stderr, flush=True)
            return
        from rich.console import Console
        from rich.text import Text

        plain = Text(escape(doing))  # a string would be markup, and a file called [/x] an error
        if self._status is None:
            self._status = Console(stderr=True).status(plain)
            self._status.start()
        else:
            self._status.update(plain)

    def close(self) -> None:
        """End the spinner; nothing of it stays on the screen."""
        if self._status is not None:
            with suppress(OSError):
                self._status.stop()
            self._status = None


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Progress]:
    """Give a Progress that ends with the work, however it ends."""
    shown = Progress(quiet=quiet)
    try:
        yield shown
    finally:
        shown.close()


def note(text: str) -> None:
    """Say something beside the answer; nobody may be left to read it."""
    from troupe_tasks.text import escape

    with suppress(OSError):
        print(escape(text), file=sys.stderr, flush=True)


def somebody_is_there() -> bool:
    """Tell whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str) -> str:
    """Ask a person and return the answer, without its newline; end of input is an empty answer."""
    print(question, end=" ", file=sys.stderr, flush=True)
    return sys.stdin.readline().rstrip("\n")


def confirmed(question: str) -> bool:
    """Ask a yes-or-no question; anything but yes, or nobody to ask, is no."""
    return somebody_is_there() and ask(f"{question} [yes/no]").strip().lower() in ("y", "yes")
