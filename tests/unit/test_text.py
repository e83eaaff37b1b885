"""Text: nothing that steers a terminal survives."""

from __future__ import annotations

import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from troupe_tasks.text import clip, escape, line, table

STEERING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]))


@given(ANY_TEXT | st.binary())
@example("\x1b]0;title\x07\u202e\u2066\u200b\ufeff\x9b31m")
@example(b"\xff\x1b[2J\xc2\x9b")
def test_no_control_or_format_character_survives(text: str | bytes) -> None:
    shown = escape(text)
    assert all(c in "\n\t" or unicodedata.category(c) not in STEERING for c in shown)
    shown.encode("utf-8")


@given(ANY_TEXT | st.binary())
def test_escaping_twice_changes_nothing_more(text: str | bytes) -> None:
    assert escape(escape(text)) == escape(text)


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert escape(text) == text
    assert escape(text.encode()) == text


@given(ANY_TEXT | st.binary(), st.integers(1, 300))
def test_a_line_is_one_line_of_bounded_length(text: str | bytes, limit: int) -> None:
    shown = line(text, limit)
    assert len(shown.splitlines()) <= 1
    assert "\t" not in shown
    assert len(shown) <= limit  # it may be put into a field of that many


def test_codes_are_as_wide_as_the_character_needs() -> None:
    assert escape("\x1b\u202e\U000e0001\n") == "\\x1b\\u202e\\U000e0001\n"
    assert escape(b"a\xffb") == "a\\xffb"
    assert escape("a\nb\tc", keep_newlines=False) == "a\\x0ab\\x09c"


def test_clipping_says_how_much_is_missing() -> None:
    assert clip("abcdef", 6) == "abcdef"
    assert clip("abcdef", 2) == "a…"
    assert clip("x" * 100, 60) == "x" * 37 + "… (63 more characters)"


def test_a_table_pads_its_columns() -> None:
    assert table(("ID", "STATE"), [("mr-doyle", "up"), ("x", "down")]) == (
        "ID        STATE\nmr-doyle  up\nx         down"
    )
    assert table(("ID",), []) == "ID"
