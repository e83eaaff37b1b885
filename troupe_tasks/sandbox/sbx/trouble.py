"""What the words of a failing `sbx` mean: it has one status, 1, for everything, so only its text tells.

Docker promises none of these texts. What is not known here is shown as it came.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from troupe_tasks.errors import AlreadyExists, DaemonFailed, NotReady, SandboxFailed, SandboxGone, TroupeError
from troupe_tasks.sandbox.sbx import restart
from troupe_tasks.text import line


@dataclass(frozen=True)
class _Known:
    """Texts of one trouble, in small letters; all words of one text have to be there. {} is a name in quotes."""

    texts: tuple[tuple[str, ...], ...]
    error: type[TroupeError]
    what: str
    hint: str = ""


_QUOTED = re.compile(r"'[^'\s]{1,100}'|\"[^\"\s]{1,100}\"")
# In this order: an account without a policy is signed in, and "not authenticated" may come from the policy's check.
_TROUBLES = (
    _Known(
        (("policy has not been initialized",),), NotReady, "sbx has no network policy yet",
        "`sbx policy init balanced` sets one, once.",
    ),
    _Known(
        (
            ("not authenticated to docker",), ("docker session has expired",), ("401 unauthorized",),
            ("sign in with: sbx login",),
        ),
        NotReady, "sbx is not signed in to Docker", "`sbx login`, then run the same command again.",
    ),
    _Known(
        (("session could not be refreshed",),), NotReady, "sbx can't renew its sign-in",
        "Docker's login.docker.com has to be reached from here; then run the same command again.",
    ),
    _Known(
        (("not in your allowlist",),), NotReady, "sbx does not accept troupe's own part of a sandbox, a local kit",
        "`sbx settings get` of kit.allowLocalKits has to say true, and of kit.requireSignature false.",
    ),
    _Known(
        (("database is at major version",), ("database already in use",)), NotReady,
        "sbx's own data is another release's, or in use",
        "Install the newest sbx again. `sbx reset` would remove every sandbox: troupe never runs it.",
    ),
    _Known((("failed to create network", "already exists"),), DaemonFailed,
           "sbx still has a part of a sandbox of this name", restart.MENDS),
    _Known((("409 conflict",), ("sandbox {} already exists",)), AlreadyExists,
           "sbx has a sandbox of this name already", restart.MENDS),
    _Known((("no sandbox named",), ("sandbox {} not found",)), SandboxGone, "sbx knows no such sandbox",
           f"Nothing was removed or made anew. {restart.MENDS}"),
    _Known(
        (
            ("daemon failed to start",), ("no sandbox executor",), ("backend unavailable",),
            ("failed to start runtime",), ("stale file handle",), ("cannot connect to the daemon",),
        ),
        DaemonFailed, "the sandbox daemon does not work", restart.MENDS,
    ),
    _Known((("no space left",),), DaemonFailed, "sbx says that no room is left",
           "`df -h` shows whether that is so; sbx says it of a broken disk image as well."),
)  # fmt: skip


def told(said: bytes, *, doing: str) -> TroupeError:
    """Return what a failing sbx meant, with its own last line as the cause."""
    # A terminal's width, or a log's, may have broken a text anywhere between two words; any name becomes {}.
    text = _QUOTED.sub("{}", " ".join(said.decode("utf-8", errors="replace").lower().split()))
    cause = line(_last(said), 300)
    for known in _TROUBLES:
        if any(all(word in text for word in words) for words in known.texts):
            return known.error(f"{known.what}: {doing} failed", cause=cause, hint=known.hint)
    return SandboxFailed(
        f"{doing} failed", cause=cause or "sbx said nothing", hint="`sbx diagnose` may tell more."
    )


def _last(said: bytes) -> bytes:
    lines = [text.strip() for text in said.splitlines() if text.strip()]
    marked = [text for text in lines if text.startswith(b"ERROR")]
    return (marked or lines or [b""])[-1]
