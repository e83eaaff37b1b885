"""End everything inside that carries a mark in its environment, with all it started; then become a command.

`reap.py MARK` ends what an earlier `run` left behind. `reap.py MARK COMMAND...` then starts the next one in its
place. A process that hides from this stays in the sandbox like any other of the agent's own.
"""

import os
import signal
import sys

ROUNDS = 50


def processes() -> dict[int, int]:
    """Return {pid: parent} of every process that can be seen."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    return found


def marked(pid: int, mark: bytes) -> bool:
    """Tell whether a process was started with the mark in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def victims(mark: bytes) -> set[int]:
    """Return the marked processes and their descendants, but neither the first process nor this one's line."""
    parents = processes()
    spared = {1, os.getpid()}
    chosen = {pid for pid in parents if pid not in spared and marked(pid, mark)}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in chosen and pid not in chosen | spared}
        chosen |= more
        grown = bool(more)
    return chosen


def main() -> None:
    """End what is marked, until nothing is, then become the command if there is one."""
    mark = b"TROUPE_RUN=" + os.fsencode(sys.argv[1])
    for _round in range(ROUNDS):
        chosen = victims(mark)
        if not chosen:
            break
        for number in (
            signal.SIGSTOP,
            signal.SIGKILL,
        ):  # stopped first, so that none starts another meanwhile
            for pid in chosen:
                try:
                    os.kill(pid, number)
                except OSError:
                    continue
    if len(sys.argv) > 2:
        command = sys.argv[2:]
        os.environ["TROUPE_RUN"] = sys.argv[1]
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
