"""Words: what a person types becomes what Invoke parses, and Invoke parses it so."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoke.collection import Collection
from invoke.parser.parser import Parser
from invoke.tasks import task

from troupe_tasks.cli import Rest, normalise
from troupe_tasks.errors import UsageError


def declared(
    body: Callable[..., None], *positional: str, rest: Rest | None = None, name: str | None = None
) -> Any:
    body.rest = rest  # type: ignore[attr-defined]
    return task(body, positional=list(positional), auto_shortflags=False, name=name)


def create(
    _c: Any, kind: str, name: str = "", cpu: str = "", force: bool = False, json: bool = False
) -> None:
    """Create."""


def chat(_c: Any, agent: str, message: str = "", raw: bool = False) -> None:
    """Chat."""


def start(_c: Any, agents: str = "", all_of_them: bool = False) -> None:
    """Start."""


def set_one(_c: Any, agent: str, service: str) -> None:
    """Set."""


def show(_c: Any, json: bool = False) -> None:
    """Show."""


def build() -> Collection:
    root = Collection()
    root.add_task(declared(create, "kind"))
    root.add_task(declared(chat, "agent", rest=Rest("message", " ")))
    root.add_task(declared(start, rest=Rest("agents", ",")))
    secret = Collection("secret")
    secret.add_task(declared(set_one, "agent", "service", name="set"))
    root.add_collection(secret)
    config = Collection("config")
    config.add_task(declared(show, name="list"), default=True)
    root.add_collection(config)
    return root


NAMESPACE = build()


def words(typed: str) -> list[str]:
    return normalise(typed.split(), NAMESPACE)


def parsed(argv: list[str]) -> dict[str, Any]:
    """Return the values that Invoke itself makes of normalised words."""
    (context,) = Parser(contexts=NAMESPACE.to_contexts()).parse_argv(argv)
    return {str(argument.name): argument.value for argument in context.args.values()}


@pytest.mark.parametrize("typed", ["secret set jane openrouter", "secret.set jane openrouter"])
def test_a_group_is_written_with_a_space_or_a_dot(typed: str) -> None:
    assert words(typed) == ["secret.set", "jane", "openrouter"]


@pytest.mark.parametrize(
    "typed",
    [
        "create hermes --name x --force --json",
        "create --name x --force hermes --json",
        "create --json --force --name=x hermes",
        "--json create --name x hermes --force",
        "create --name x --json --force -- hermes",
    ],
)
def test_flags_come_anywhere(typed: str) -> None:
    found = parsed(words(typed))
    assert (found["kind"], found["name"], found["force"], found["json"]) == ("hermes", "x", True, True)


@pytest.mark.parametrize(
    "typed",
    [
        "create --help", "create -h", "create hermes --help", "create hermes --name --help",
        "create --unknown --help", "--help create", "create --json --help hermes more words",
    ],
)  # fmt: skip
def test_help_comes_anywhere(typed: str) -> None:
    assert words(typed) == ["--help", "create"]


def test_help_of_groups_and_their_commands() -> None:
    assert words("secret set --help") == ["--help", "secret.set"]
    assert words("--help secret set") == ["--help", "secret.set"]
    assert words("secret --help") == ["--list", "secret"]
    assert words("--help secret") == ["--list", "secret"]
    assert words("config --help") == ["--help", "config.list"]


def test_help_behind_two_dashes_is_a_word() -> None:
    assert parsed(words("chat jane -- -h"))["message"] == "-h"


@pytest.mark.parametrize(
    "typed",
    [
        "", "--version", "--help", "-l", "--list secret", "--complete -- troupe cr", "--complete -- troupe --frob",
        "--print-completion-script bash",
    ],
)  # fmt: skip
def test_invokes_own_words_stay(typed: str) -> None:
    assert words(typed) == typed.split()


@pytest.mark.parametrize("typed", ["--json --help", "--help --json", "-h --debug", "--debug", "--json"])
def test_without_a_command_there_is_help(typed: str) -> None:
    assert words(typed) == ["--help"]


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("--frob", "has no flag --frob"),
        ("--frob list", "has no flag --frob"),
        ("--json --frob create", "has no flag --frob"),
        ("--help --frob", "has no flag --frob"),
        ("-x", "has no flag -x"),
        ("-", "has no flag -"),
        ("--", "has no flag --"),
        ("--version create", "--version can't take 'create'"),
        ("--version=2", "--version can't take '2'"),
        ("--list nonsense", "--list can't take 'nonsense'"),
        ("-l --frob", "-l can't take '--frob'"),
        ("--print-completion-script", "takes one shell"),
        ("--print-completion-script=tcsh", "takes one shell"),
    ],
)
def test_before_a_command_stands_nothing_that_is_not_known(typed: str, reason: str) -> None:
    with pytest.raises(UsageError, match=re.escape(reason)):
        words(typed)


@pytest.mark.parametrize(
    "value", ["-rf", "--", "-", "--not-a-flag", "a=b", "", "create", "secret.set", "a b", "é\n"]
)
def test_a_value_is_a_value_whatever_it_looks_like(value: str) -> None:
    for typed in (["create", "hermes", "--name", value], ["create", f"--name={value}", "hermes"]):
        found = parsed(normalise(typed, NAMESPACE))
        assert (found["kind"], found["name"]) == ("hermes", value)


@pytest.mark.parametrize("value", ["-rf", "-x", "--not-a-flag", "-", "create", ""])
def test_a_word_behind_two_dashes_is_no_flag(value: str) -> None:
    assert parsed(normalise(["chat", "--", value], NAMESPACE))["agent"] == value
    found = parsed(normalise(["chat", "jane", "--", value, "x"], NAMESPACE))
    assert (found["agent"], found["message"]) == ("jane", f"{value} x")


def test_further_words_go_where_the_command_says() -> None:
    assert words("chat jane hello there  you --raw") == ["chat", "jane", "--raw", "--message=hello there you"]
    assert words("start a b --all-of-them c") == ["start", "--all-of-them", "--agents=a,b,c"]


def test_a_positional_may_be_given_by_its_flag() -> None:
    found = parsed(words("chat --agent jane hello"))
    assert (found["agent"], found["message"]) == ("jane", "hello")


def test_a_group_with_a_usual_command_stands_for_it() -> None:
    assert words("config") == ["config.list"]
    assert words("config --json") == ["config.list", "--json"]


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("craete hermes", "no command 'craete'"),
        ("secret", "needs one of: set"),
        ("secret sett a b", "needs one of: set"),
        ("secret set a", "needs SERVICE"),
        ("create", "needs KIND"),
        ("create --name x", "needs KIND"),
        ("create hermes more", "does not take the word 'more'"),
        ("create hermes --nmae x", "has no flag --nmae"),
        ("create hermes -n x", "has no flag -n"),
        ("create -rf", "has no flag -rf"),
        ("create hermes --name", "--name needs a value"),
        ("create hermes --force=yes", "--force takes no value"),
        ("create hermes --name --force", "--name can't be --force"),
        ("create hermes --name a --name b", "--name is given twice"),
        ("chat jane --message a b", "--message is given twice"),
        ("chat jane -- --raw", "--message can't be --raw"),
        ("chat -- --raw", "--agent can't be --raw"),
    ],
)
def test_what_fits_nowhere_is_refused(typed: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        words(typed)


def test_a_slip_of_the_keys_is_told_the_command() -> None:
    with pytest.raises(UsageError) as caught:
        words("craete")
    assert "`troupe create`" in caught.value.hint


@given(
    st.lists(
        st.sampled_from(["create", "secret", "set", "config", "chat", "hermes", "x"]) | st.text(max_size=6),
        max_size=6,
    )
)
def test_any_words_are_parsed_by_invoke_or_refused_by_us(typed: list[str]) -> None:
    try:
        argv = normalise(typed, NAMESPACE)
    except UsageError:
        return
    if argv and not argv[0].startswith("-"):
        parsed(argv)
