"""Every error a person can meet: one tree, one stable exit status a kind, one hint each.

The page docs/errors.md is generated from this tree: `python -m troupe_tasks.errors [--check] FILE`.
A class's docstring is the page's text; `hint` is the default next step, which a raiser may sharpen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator


class TroupeError(Exception):
    """Something stopped troupe; what was done so far is kept."""

    status = 1
    hint = "Run the same command again with --debug and report what it prints."

    def __init__(self, what: str, *, cause: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        if hint:
            self.hint = hint

    def __str__(self) -> str:
        return f"{self.what} ({self.cause})" if self.cause else self.what


class UsageError(TroupeError):
    """The command's words are off: a flag, a name, a number or a file that troupe can't take."""

    status = 2
    hint = "See `troupe COMMAND --help`."


class Refused(TroupeError):
    """troupe understood, and won't: going on would break a promise. Nothing was changed."""

    status = 3
    hint = "The message says what stands in the way; change that first."


class AlreadyExists(Refused):
    """An agent with this ID exists already; two names with the same ID can't coexist."""

    hint = "Choose another name, or `troupe delete` the old agent first."


class NotFound(Refused):
    """There is no agent with this ID. Commands take the ID, not the display name."""

    hint = "`troupe list` shows every agent and its ID."


class NotRunning(Refused):
    """The command needs a running agent."""

    hint = "`troupe start ID` starts it."


class Unfinished(Refused):
    """Another operation on this agent was interrupted and must be finished first."""

    hint = "Run the interrupted command again: it goes on from its last receipt."


class Locked(Refused):
    """Another troupe process is working on this agent right now."""

    hint = "Wait for it to end, then run the command again. A dead process holds no lock."


class OverBudget(Refused):
    """The agent needs more than this machine has left."""

    hint = "Stop another agent, choose smaller sizes, or pass --force."


class Tampered(Refused):
    """A receipt was altered after it was written, so the journal can't be trusted. Looking at the agent goes on."""

    hint = (
        "Put the file back from a copy of yours. Or create the agent anew: copy what is in "
        "`~/.local/state/troupe/backups/ID` to another place first, for `troupe delete ID` removes it."
    )


class KeyMissing(Refused):
    """The agent has no key for this service."""

    hint = "Set the key, or leave the service out."


class KeyRefused(Refused):
    """A key's file, or the folder it is in, is not of the form that the agent's key tier keeps."""

    hint = "Nothing was read or changed. Move the file away, then set the key again."


class BackupDamaged(Refused):
    """A backup's files are not, or no longer, what was written when it was made."""

    hint = "Don't remove anything on its word. Make a new backup, or restore another one."


class NotConfirmed(Refused):
    """A question was answered with anything but yes, or there was nobody to ask."""

    hint = "Run it on a terminal and answer, or pass the flag that the command's --help names."


class NotReady(TroupeError):
    """This machine lacks something: a program, a right, a service, room."""

    status = 4
    hint = "`troupe doctor` lists what is missing and how to get it."


class DiskFull(NotReady):
    """A filesystem has no room left. Files of state are whole: they are replaced, never overwritten."""

    hint = "Free some space (`df -h` shows where), then run the same command again."


class FolderUnusable(NotReady):
    """A folder that troupe keeps things in is a link, another user's, or can't be written."""

    hint = "Make it a plain folder of your own, or point the XDG variable elsewhere."


class StateUnreadable(NotReady):
    """A file of state does not have the form that troupe writes."""

    hint = "Restore the file from a backup; troupe never guesses what it may have said."


class ToolMissing(NotReady):
    """A program that troupe calls is not installed."""

    hint = "`troupe doctor` names the package that brings it."


class ToolFailed(NotReady):
    """A program that troupe called ended with an error."""

    done: object = None  # a process.Done: how it ended and what it printed


class ToolTimeout(ToolFailed):
    """A program that troupe called did not end before its deadline and was stopped."""


class KeyFailed(NotReady):
    """This machine can't seal or open a key in the way that the agent's key tier says."""

    hint = "docs/keys.md says what each cause means. No weaker way is taken instead."
    fault: str = ""  # a keystore.sealed.Fault: which of the causes it is


class RegistryFailed(NotReady):
    """The registry of kits did not answer, or not as a registry does. Nothing of its answer was kept."""

    hint = "Check the network and `troupe config get registry`, then run the same command again."


class ReleaseFailed(NotReady):
    """The address of troupe's releases did not answer, or not with a whole release. The installed troupe stays."""

    hint = "Check the network, then run `troupe update` again."


class SandboxFailed(TroupeError):
    """The sandbox did not do what it was asked."""

    status = 5
    hint = (
        "`troupe status ID` shows how it stands, `troupe logs ID --egress` what it tried to reach; "
        "`troupe restart ID` starts it afresh."
    )


class SandboxTimeout(SandboxFailed):
    """Something inside a sandbox did not end before its deadline; it was stopped."""


class SandboxGone(SandboxFailed):
    """The sandbox on record is not there, or is not the one on record."""

    hint = "`troupe status ID` says what is there. Nothing was removed."


class DaemonFailed(SandboxFailed):
    """The daemon that runs the sandboxes does not answer, or its answer can't be relied on."""

    hint = (
        "`troupe doctor` shows how it stands, `sbx diagnose` tells more. A restart of it stops every sandbox."
    )


class SelfTestFailed(SandboxFailed):
    """The agent was created, but its first message got no good answer."""

    hint = (
        "`troupe status ID` shows the self-test, `troupe logs ID --egress` what it tried to reach; "
        "mend the cause, then `troupe restart ID`."
    )


class MoveFailed(SandboxFailed):
    """An agent did not get on in its new sandbox. It is back in its old one, as it was before."""

    hint = "Mend the cause, then run the same command again: it begins anew."


class BackupFailed(SandboxFailed):
    """A backup could not be made, or not be proved by restoring it. The agent and its other backups are untouched."""

    hint = (
        "Mend the cause, then run the same command again. `troupe backup list ID` shows what was proved when."
    )


class EgressFailed(SandboxFailed):
    """The broker, which carries all of the agents' traffic, does not answer."""

    hint = "`troupe restart --all` starts it again; `troupe logs broker` says why it stopped."


class Interrupted(TroupeError):
    """Ctrl-C or a signal stopped the command. Where an operation was left half done, the message names it."""

    status = 130
    hint = "No operation was left half done. Run the same command again to do it after all."


def tree(root: type[TroupeError] = TroupeError) -> Iterator[tuple[int, type[TroupeError]]]:
    """Yield (depth, class) for every error class, parents first."""
    pending = [(0, root)]
    while pending:
        depth, cls = pending.pop()
        yield depth, cls
        pending.extend(
            (depth + 1, sub) for sub in reversed(cls.__subclasses__()) if sub.__module__ == __name__
        )


def page() -> str:
    """Return docs/errors.md."""
    rows = [
        "# Every error, and what to do",
        "",
        "Generated from `troupe_tasks/errors.py` by `python -m troupe_tasks.errors docs/errors.md`.",
        "",
        "| error | exit status | what it means | what to do |",
        "| --- | --- | --- | --- |",
    ]
    for depth, cls in tree():
        meaning = " ".join((cls.__doc__ or "").split())
        rows.append(f"| {'· ' * depth}{cls.__name__} | {cls.status} | {meaning} | {cls.hint} |")
    return "\n".join(rows) + "\n"


def main(argv: list[str]) -> int:
    """Write the page to FILE, or with --check compare it."""
    from pathlib import Path

    target = Path(argv[-1])
    if "--check" in argv:
        return 0 if target.read_text(encoding="utf-8") == page() else 1
    target.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
