"""Invoke's program, with help in the words of this one: commands and their flags, without Invoke's own options."""

from __future__ import annotations

import inspect
from typing import Any

from invoke.program import Program
from invoke.util import helpline

_FRAME = """\
Usage: troupe COMMAND [WORDS] [--flags]

A troupe of personal AI agents, each in a sandbox of its own. `troupe COMMAND --help` tells about one command.
Every command that shows something takes --json; --debug shows tracebacks; --version shows the version.
`troupe --print-completion-script bash` (or zsh, fish) prints the shell completion.
In a checkout, `./troupe test` runs troupe's own tests.
"""


class Troupe(Program):
    """The program `troupe`."""

    def print_help(self) -> None:
        """Print what troupe is and its commands."""
        print(_FRAME)
        self.list_tasks()

    def print_task_help(self, name: str) -> None:
        """Print one command's usage, meaning, example and flags."""
        context: Any = self.parser.contexts[name]
        task: Any = self.collection[name]
        wanted = [argument for argument in task.get_arguments() if argument.positional]
        rest = getattr(task.body, "rest", None)
        words = [str(argument.name).upper() for argument in wanted]
        further = [f"[{rest.flag.upper()}...]"] if rest else []
        print(" ".join(["Usage: troupe", *name.split("."), *words, *further, "[--flags]"]), end="\n\n")
        print(inspect.getdoc(task), end="\n\n")
        given_by_word = {f"--{argument.name.replace('_', '-')}" for argument in wanted}
        rows = [row for row in context.help_tuples() if row[0].split("=")[0] not in given_by_word]
        described = [
            (str(argument.name).upper(), context.args[argument.name].help or "") for argument in wanted
        ]
        self.print_columns([*described, *rows])
        self._print_others(name)

    def _print_others(self, name: str) -> None:
        # The help of a group whose name alone is a command is that command's, and would hide the others.
        group, _, own = name.rpartition(".")
        found: Any = self.collection.collections.get(group)
        if found is not None and found.default == own:
            print(f"Other commands of {group}:\n")
            others = [
                (f"{group} {one}", helpline(task)) for one, task in sorted(found.tasks.items()) if one != own
            ]
            self.print_columns(others)
