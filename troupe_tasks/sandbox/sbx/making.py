"""Make and remove a sandbox, so that either may be killed at any moment and run again."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from troupe_tasks import config
from troupe_tasks.errors import AlreadyExists, DaemonFailed, SandboxGone, TroupeError
from troupe_tasks.paths import Paths
from troupe_tasks.sandbox.sbx import answers, calls, environment, host, restart, template, walls, way_out
from troupe_tasks.sandbox.sbx import saved as keeping
from troupe_tasks.sandbox.sbx.saved import Saved

_AGAIN_S = 0.2
_TRIES = 4
_LATER_S = 2.0
_REMOVE_S = 120.0


def listing() -> list[answers.Listed]:
    """Return all that sbx lists."""
    return calls.ask(answers.Sandboxes, ["ls", "--json"]).sandboxes


def listed(name: str) -> answers.Listed | None:
    """Return what sbx lists under a name."""
    return next((one for one in listing() if one.name == name), None)


def make(paths: Paths, saved: Saved) -> str:
    """Make a sandbox that has no identity yet, and return the one that it gets.

    What an interrupted making left under its name goes first: nothing was ever put into it.
    """
    if listed(saved.name) is not None:
        _remove(saved.name)
    host.ensure_policy()
    if registry := config.read(paths).get("registry"):
        host.admit(registry)
    name = template.ensure(paths, saved.spec.image)
    file = environment.write(keeping.place(paths, saved.spec.id), saved.spec, name=saved.name, template=name)
    _create(file, saved)
    try:
        one = listed(saved.name)
        if one is None:
            raise DaemonFailed(f"sbx made {saved.name}, but does not list it", hint=restart.BRINGS_BACK)
        walls.prove(one)
    except BaseException:
        # Neither without its walls nor half: what is not proved is not kept. The next try removes what this can't.
        with suppress(TroupeError):
            _remove(saved.name)
        raise
    keeping.keep(paths, saved.model_copy(update={"identity": one.id}))
    return one.id


def _create(file: Path, saved: Saved) -> None:
    """Have sbx make the sandbox. An interrupted making may still be at work on the same one, which then goes."""
    words: list[str | Path] = ["env", "create", file, "--skip-host-commands", _approval()]
    for attempt in range(_TRIES):
        try:
            calls.do(words, deadline_s=calls.MAKE_S, env=environment.storage(saved.spec.sizes))
        except AlreadyExists as error:
            if attempt == _TRIES - 1:
                raise DaemonFailed(
                    f"sbx has a sandbox {saved.name}, but does not list it",
                    cause=error.cause,
                    hint=restart.BRINGS_BACK,
                ) from None
            time.sleep(_LATER_S)
            if listed(saved.name) is not None:
                _remove(saved.name)
        else:
            return


def _approval() -> str:
    """Return the flag by which nobody is asked: it had another name before 0.48, and help starts no daemon."""
    said = calls.call(["env", "create", "--help"]).stdout
    return "--auto-approve" if b"--auto-approve" in said else "--force"


def remove(paths: Paths, saved: Saved) -> None:
    """Remove a sandbox that is the one on record, then what is kept of it.

    One that sbx does not list is only taken for removed when a removal of ours had begun, and another one ends well.
    """
    sandbox_id = saved.spec.id
    one = listed(saved.name)
    if one is None and saved.identity is not None and not saved.removing:
        raise SandboxGone(
            f"the sandbox {sandbox_id} is on record, but sbx does not list it", cause=f"its name is {saved.name}",
            hint=f"{restart.BRINGS_BACK} If it was removed by hand, remove {keeping.place(paths, sandbox_id)} too.",
        )  # fmt: skip
    if one is not None and saved.identity is not None and one.id != saved.identity:
        raise SandboxGone(
            f"the sandbox {saved.name} is not the one on record", hint="Nothing was done to it."
        )
    way_out.stop(paths, sandbox_id)
    keeping.keep(paths, saved.model_copy(update={"removing": True}))
    try:
        _remove(saved.name)
    except TroupeError:
        # Nothing was removed as far as anybody knows, and a daemon that is ill may soon list nothing.
        keeping.keep(paths, saved.model_copy(update={"removing": False}))
        raise
    _surely_absent(saved.name)
    keeping.forget(paths, sandbox_id)


def _remove(name: str) -> None:
    """Have sbx remove a sandbox; one that it says it does not have is removed."""
    with suppress(SandboxGone):
        calls.do(["rm", "-f", name], deadline_s=_REMOVE_S)


def _surely_absent(name: str) -> None:
    """Believe that a sandbox is gone when two listings of a daemon that runs are without it."""
    for attempt in range(2):
        if attempt:
            time.sleep(_AGAIN_S)
        if listed(name) is not None:
            raise DaemonFailed(
                f"sbx removed {name}, and still lists it",
                hint=f"Run the same command again; if it stays so, {restart.COMMAND}.",
            )
    if not calls.runs():
        raise DaemonFailed("the sandbox daemon does not run, so its listing says nothing")
