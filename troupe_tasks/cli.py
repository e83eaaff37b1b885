"""Turn the words a person types into the ones Invoke parses.

Invoke wants flags with their own task, `group.task` names and exactly the positionals a task declares. People
also write `secret set`, put flags anywhere, ask for --help at the end, name several agents, and type a
message of many words. Everything here is a plain function from words to words; what fits nowhere is a
UsageError.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from invoke.collection import Collection
from invoke.parser.argument import Argument
from invoke.tasks import Task

from troupe_tasks.errors import UsageError

HELP = ("--help", "-h")
_AHEAD = (*HELP, "--json", "--debug")  # flags of a command that people also put before it
_ALONE = ("--version", "-V")
_SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Rest:
    """Where a command's further words go: into one flag, joined."""

    flag: str
    joint: str


def normalise(argv: Sequence[str], namespace: Collection) -> list[str]:
    """Return argv (without the program's name) as Invoke wants it."""
    ahead = list(itertools.takewhile(_AHEAD.__contains__, argv))
    argv = argv[len(ahead) :]
    if not argv:
        return ["--help"] if ahead else []
    if argv[0].startswith("-"):
        return _without_command(argv, namespace)
    group = namespace.collections.get(argv[0])
    if group is not None and not group.default and [*argv[1:], *ahead][:1] in ([word] for word in HELP):
        return ["--list", argv[0]]
    name, rest = _command(argv, namespace)
    rest = [*ahead, *rest]
    before_dashes = rest[: rest.index("--")] if "--" in rest else rest
    if any(word in HELP for word in before_dashes):
        return ["--help", name]
    task: Task[Any] = namespace[name]
    return [name, *_arranged(name, task, rest)]


def _without_command(argv: Sequence[str], namespace: Collection) -> list[str]:
    """Return the words that Invoke answers itself, where they are of a form that it takes."""
    flag, equals, value = argv[0].partition("=")
    rest = [value, *argv[1:]] if equals else list(argv[1:])
    if flag == "--complete":
        return list(argv)
    if flag in _ALONE and all(word in _AHEAD for word in rest):
        return [flag]
    if flag in ("--list", "-l") and (not rest or (len(rest) == 1 and rest[0] in namespace.collections)):
        return [flag, *rest]
    if flag == "--print-completion-script":
        if len(rest) == 1 and rest[0] in _SHELLS:
            return [flag, *rest]
        raise UsageError(f"{flag} takes one shell", hint=f"The shells are: {', '.join(_SHELLS)}.")
    known = flag in (*_ALONE, "--list", "-l")
    what = f"{flag} can't take {rest[0][:60]!r}" if known else f"troupe has no flag {flag[:60]}"
    raise UsageError(what, hint="`troupe --help` lists the commands; a command's flags come after it.")


def _command(argv: Sequence[str], namespace: Collection) -> tuple[str, Sequence[str]]:
    first = argv[0]
    if first in namespace.task_names:
        if len(argv) > 1 and f"{first}.{argv[1]}" in namespace.task_names:
            return f"{first}.{argv[1]}", argv[2:]
        return first, argv[1:]
    if first in namespace.collections:
        known = sorted(n.split(".", 1)[1] for n in namespace.task_names if n.startswith(f"{first}."))
        if len(argv) > 1 and argv[1] in known:
            return f"{first}.{argv[1]}", argv[2:]
        usual = namespace.collections[first].default
        if usual and (
            len(argv) == 1 or argv[1].startswith("-") or _takes_words(namespace[f"{first}.{usual}"])
        ):
            return f"{first}.{usual}", argv[1:]
        raise UsageError(
            f"troupe {first} needs one of: {', '.join(known)}", hint=f"See `troupe {first} --help`."
        )
    from difflib import get_close_matches

    near = get_close_matches(first, namespace.task_names, n=1)
    hint = f"Did you mean `troupe {near[0]}`?" if near else "`troupe --help` lists the commands."
    raise UsageError(f"there is no command {first[:60]!r}", hint=hint)


def _takes_words(task: Task[Any]) -> bool:
    return any(argument.positional for argument in task.get_arguments())


def _arranged(name: str, task: Task[Any], rest: Iterable[str]) -> list[str]:
    by_flag = {flag: argument for argument in task.get_arguments() for flag in _flags(argument)}
    positionals: list[str] = []
    flags: list[str] = []
    words = iter(rest)
    for word in words:
        if word == "--":
            positionals.extend(words)
        elif word.startswith("-") and word != "-":
            flags.append(_flag(name, word, words, by_flag))
        else:
            positionals.append(word)
    given = {flag.partition("=")[0] for flag in flags}
    names = [str(argument.name) for argument in task.get_arguments() if argument.positional]
    wanted = [one for one in names if _flag_of(one) not in given]
    if len(positionals) < len(wanted):
        missing = " ".join(one.upper() for one in wanted[len(positionals) :])
        raise UsageError(f"troupe {name} needs {missing}", hint=f"See `troupe {name} --help`.")
    extra = positionals[len(wanted) :]
    if extra:
        flags.append(_further(name, task, extra))
    arranged = [*itertools.starmap(_positional, zip(wanted, positionals, strict=False)), *flags]
    _refuse_unsayable(name, arranged, by_flag)
    return arranged


def _positional(wanted: str, word: str) -> str:
    # Invoke takes a word with a dash for a flag wherever it stands; behind its own flag it is a value.
    return f"{_flag_of(wanted)}={word}" if word.startswith("-") and word != "-" else word


def _refuse_unsayable(name: str, arranged: Sequence[str], by_flag: dict[str, Argument]) -> None:
    # Invoke takes a value that is one of the command's flags for that flag, and a second value for a command.
    seen: set[str] = set()
    for word in arranged:
        if not word.startswith("--"):
            continue
        flag, _, value = word.partition("=")
        if value in by_flag:
            raise UsageError(f"{flag} can't be {value}, a flag itself", hint=f"See `troupe {name} --help`.")
        if flag in seen and by_flag[flag].kind not in (bool, list):
            raise UsageError(f"{flag} is given twice", hint=f"See `troupe {name} --help`.")
        seen.add(flag)


def _flags(argument: Argument) -> list[str]:
    return [_flag_of(str(name)) for name in argument.names]


def _flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _flag(name: str, word: str, words: Iterable[str], by_flag: dict[str, Argument]) -> str:
    flag, equals, value = word.partition("=")
    argument = by_flag.get(flag)
    if argument is None:
        raise UsageError(f"troupe {name} has no flag {flag[:60]}", hint=f"See `troupe {name} --help`.")
    if argument.kind is bool:
        if equals:
            raise UsageError(f"{flag} takes no value", hint=f"See `troupe {name} --help`.")
        return flag
    if not equals:
        following = next(iter(words), None)
        if following is None:
            raise UsageError(f"{flag} needs a value", hint=f"See `troupe {name} --help`.")
        value = following
    return f"{flag}={value}"


def _further(name: str, task: Task[Any], extra: Sequence[str]) -> str:
    rest: Rest | None = getattr(task.body, "rest", None)
    if rest is None:
        raise UsageError(
            f"troupe {name} does not take the word {extra[0][:60]!r}", hint=f"See `troupe {name} --help`."
        )
    return f"--{rest.flag}={rest.joint.join(extra)}"
