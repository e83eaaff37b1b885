"""The program `troupe`: the same namespace as `invoke`, with words in the order people type them."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that sys.argv names and exit with its status."""
    from troupe_tasks.commands.frame import guarded

    guarded(_run, as_json=False, debug="--debug" in sys.argv)


def _run() -> None:
    from troupe_tasks import __version__
    from troupe_tasks.cli import normalise
    from troupe_tasks.namespace import namespace
    from troupe_tasks.program import Troupe

    program = Troupe(name="troupe", binary="troupe", version=__version__, namespace=namespace)
    program.run(["troupe", *normalise(sys.argv[1:], namespace)])


if __name__ == "__main__":
    main()
