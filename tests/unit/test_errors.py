"""Errors: one status a kind, a hint each, and the page that lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from troupe_tasks import errors
from troupe_tasks.errors import NotReady, Refused, SandboxFailed, TroupeError, UsageError, main, page, tree

STATUSES = {TroupeError: 1, UsageError: 2, Refused: 3, NotReady: 4, SandboxFailed: 5, errors.Interrupted: 130}
CLASSES = [cls for _, cls in tree()]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_has_a_meaning_a_hint_and_its_kinds_status(cls: type[TroupeError]) -> None:
    assert (cls.__doc__ or "").strip().endswith(".")
    assert cls.hint.strip()
    kind = next(base for base in cls.__mro__ if base in STATUSES)
    assert cls.status == STATUSES[kind]


def test_the_tree_has_every_error_once_parents_first() -> None:
    defined = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, TroupeError)}
    assert set(CLASSES) == defined
    assert len(CLASSES) == len(defined)
    for cls in CLASSES[1:]:
        parent = cls.__mro__[1]
        assert issubclass(parent, TroupeError)
        assert CLASSES.index(parent) < CLASSES.index(cls)


def test_a_raiser_may_sharpen_the_hint_and_add_the_cause() -> None:
    plain = UsageError("what")
    assert (str(plain), plain.hint) == ("what", UsageError.hint)
    sharp = UsageError("what", cause="why", hint="do this")
    assert (str(sharp), sharp.what, sharp.cause, sharp.hint) == ("what (why)", "what", "why", "do this")
    assert UsageError.hint != "do this"


def test_the_page_lists_every_error_in_one_table() -> None:
    rows = [row for row in page().splitlines() if row.startswith("| ")]
    assert len(rows) == len(CLASSES) + 2
    assert all(row.count(" | ") == 3 for row in rows)


def test_the_page_is_written_and_compared(tmp_path: Path) -> None:
    file = tmp_path / "errors.md"
    assert main([str(file)]) == 0
    assert main(["--check", str(file)]) == 0
    file.write_text("old", encoding="utf-8")
    assert main(["--check", str(file)]) == 1
    assert file.read_text(encoding="utf-8") == "old"
