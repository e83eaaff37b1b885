"""Names: what folds to which ID, and what is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from troupe_tasks.errors import UsageError
from troupe_tasks.names import ID_LIMIT, NAME_LIMIT, agent_id, checked_id
from troupe_tasks.record import sandbox_of

GRAMMAR = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@given(st.text(max_size=NAME_LIMIT + 2))
@example("Mr. Doyle")
@example("㎯" * NAME_LIMIT)
@example("ẞ" * NAME_LIMIT)
def test_a_name_gives_an_id_of_the_grammar_or_is_refused(name: str) -> None:
    try:
        folded = agent_id(name)
    except UsageError:
        return
    assert GRAMMAR.fullmatch(folded)
    assert len(folded) <= ID_LIMIT
    assert checked_id(folded) == folded
    if len(folded) <= NAME_LIMIT:
        assert agent_id(folded) == folded


@given(st.text(alphabet=st.characters(categories=["Lu", "Ll", "Nd", "Zs", "Po"]), max_size=20))
def test_case_and_accents_do_not_tell_two_ids_apart(name: str) -> None:
    try:
        folded = agent_id(name)
    except UsageError:
        return
    assert folded.isascii()
    assert folded == folded.lower()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Mr. Doyle", "mr-doyle"),
        ("Élodie", "elodie"),
        ("Elodie\u0301", "elodie"),
        ("Straße 5", "strasse-5"),
        ("STRAẞE", "strasse"),
        ("Ærøskøbing", "aeroskobing"),
        ("Łódź", "lodz"),
        ("İstanbul \u0131rmak", "istanbul-irmak"),
        ("  --a__b--  ", "a-b"),
        ("\uff26\uff55ll", "full"),
        ("😀 x 😀", "x"),
        ("👩\u200d🔬 Ada", "ada"),
        ("-rf", "rf"),
        ("a/../b", "a-b"),
        ("a" * NAME_LIMIT, "a" * NAME_LIMIT),
    ],
)
def test_names_fold(name: str, expected: str) -> None:
    assert agent_id(name) == expected


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (" \t ", "empty"),
        ("a" * (NAME_LIMIT + 1), "36 characters"),
        ("😀🎉", "folds to an empty ID"),
        ("..", "folds to an empty ID"),
        ("日本", "folds to an empty ID"),
        ("a\x00b", "control character"),
        ("a\nb", "control character"),
        ("a\x1b[31m", "control character"),
        ("a\u202eb", "control character"),
        ("a\u2028b", "control character"),
        ("a\ud800b", "control character"),
        ("㎯" * NAME_LIMIT, "at most 63"),
        ("Broker", "a service of this machine"),
        ("*rehearsal*", "a service of this machine"),
    ],
)
def test_bad_names_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        agent_id(name)


@pytest.mark.parametrize("text", ["Mr. Doyle", "..", "-rf", "a-", "a--b", "a/b", "a\n", "", "é", "x" * 64])
def test_what_is_no_id_is_refused_where_an_id_is_wanted(text: str) -> None:
    with pytest.raises(UsageError, match="not an agent's ID"):
        checked_id(text)


def test_a_sandbox_is_told_its_agent_and_no_other() -> None:
    with pytest.raises(UsageError, match="not an agent") as caught:
        checked_id(sandbox_of("mr-doyle", 2))
    assert "`mr-doyle`" in caught.value.hint
    assert "mr-doyle-2" not in caught.value.hint


def test_a_display_name_is_told_its_id() -> None:
    with pytest.raises(UsageError) as caught:
        checked_id("Mr. Doyle")
    assert "`mr-doyle`" in caught.value.hint
