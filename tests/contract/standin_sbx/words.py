"""The command line that the stand-in takes: only what Docker documents, and nothing like it."""

from __future__ import annotations

from dataclasses import dataclass, field

# command -> (flags that take a value, flags that take none, fewest and most positional words)
COMMANDS: dict[str, tuple[set[str], set[str], int, int]] = {
    "version": (set(), {"--json"}, 0, 0),
    "ls": (set(), {"--json", "-q"}, 0, 0),
    "inspect": (set(), {"--json"}, 1, 1),
    "stop": (set(), set(), 1, 99),
    "rm": (set(), {"-f", "--force", "--all"}, 1, 99),
    "daemon status": (set(), {"--json"}, 0, 0),
    "daemon restart": (set(), set(), 0, 0),
    "env create": (
        {"--name", "--env-arg", "--env-args-file", "--kit-arg"},
        {"--force", "-f", "--skip-host-commands", "--clone", "--help"}, 1, 9,
    ),
    "policy init": (set(), set(), 1, 1),
    "policy allow network": ({"--sandbox", "--protocol", "--method", "--path"}, set(), 1, 1),
    "policy deny network": ({"--sandbox", "--protocol", "--method", "--path"}, set(), 1, 1),
    "policy check network": ({"--sandbox"}, {"--json"}, 1, 1),
    "policy ls": ({"--source", "--decision", "--type"}, {"--wide", "--json", "--include-inactive"}, 0, 1),
    "template ls": (set(), {"--json", "-q"}, 0, 0),
    "template load": (set(), set(), 1, 1),
    "template rm": (set(), {"-f", "--force"}, 1, 99),
    "settings get": (set(), {"--json"}, 1, 1),
    "settings set": (set(), set(), 2, 2),
    "secret set": (
        {"--sandbox", "--registry", "--username", "--ref", "--command", "--refresh", "--registry-auth-endpoint"},
        {"--password-stdin", "--all-sandboxes", "-f", "--no-verify"}, 0, 1,
    ),
    "secret ls": ({"--sandbox", "--service"}, {"--json"}, 0, 0),
}  # fmt: skip
EXEC = ({"-u", "-w", "-e", "--env-file"}, {"-i", "-t", "--privileged"})


class Wrong(Exception):
    """The words are none that Docker documents."""


@dataclass
class Asked:
    """A command with its flags and its other words."""

    command: str
    flags: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)


def parse(argv: list[str]) -> Asked:
    """Return what was asked for."""
    if argv[:1] == ["exec"]:
        return _exec(argv[1:])
    for length in (3, 2, 1):
        name = " ".join(argv[:length])
        if name in COMMANDS:
            return _plain(name, argv[length:])
    raise Wrong(f"unknown command {' '.join(argv[:2])!r}")


def _plain(name: str, left: list[str]) -> Asked:
    valued, bare, fewest, most = COMMANDS[name]
    asked = Asked(name)
    while left:
        word = left.pop(0)
        if word in bare:
            asked.flags[word] = ""
        elif word in valued:
            asked.flags[word] = _value(word, left)
        elif word.startswith("-"):
            raise Wrong(f"unknown flag: {word}")
        else:
            asked.words.append(word)
    if "--help" not in asked.flags and not fewest <= len(asked.words) <= most:
        raise Wrong(f"{name} takes {fewest} to {most} words, got {len(asked.words)}")
    return asked


def _exec(left: list[str]) -> Asked:
    """Everything after the sandbox's name is the command's own."""
    valued, bare = EXEC
    asked = Asked("exec")
    while left and left[0].startswith("-"):
        word = left.pop(0)
        if word not in valued | bare:
            raise Wrong(f"unknown flag: {word}")
        asked.flags[word] = _value(word, left) if word in valued else ""
    if len(left) < 2:
        raise Wrong("exec takes a sandbox and a command")
    asked.words = [left[0], *(left[2:] if left[1] == "--" else left[1:])]
    for place, word in enumerate(asked.words[1:]):
        if not word:
            raise Wrong(f"400 Bad Request: cmd element {place} is empty")
    return asked


def _value(flag: str, left: list[str]) -> str:
    if not left:
        raise Wrong(f"flag needs an argument: {flag}")
    return left.pop(0)
