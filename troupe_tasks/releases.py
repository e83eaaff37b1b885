"""The newest release at an address: its version, and its installer, proved by the release's own sums.

The address is an https folder, which docs/installing.md describes. Redirects are followed to https alone, for that is
how forges hand out the files of a release.
"""

from __future__ import annotations

import hashlib
import re
import time

from troupe_tasks.errors import RegistryFailed, ReleaseFailed
from troupe_tasks.kits import https
from troupe_tasks.stamp import VERSION
from troupe_tasks.text import line

ASK_S = 20.0
_CAP_BYTES = 1 << 20  # what a forge says instead of a file that it lacks is a whole page
_REDIRECTS = 3
_SUM = re.compile(r"([0-9a-f]{64}) [ *]([!-~]+)")


def newest(address: str, *, deadline_s: float = ASK_S) -> str:
    """Return the version of the newest release, `1.2.3`; raises ReleaseFailed."""
    said = _get(address, "VERSION", deadline_s=deadline_s)
    text = said.decode("ascii", errors="replace").removesuffix("\n")
    if not re.fullmatch(VERSION, text) or "\n" in text:
        raise ReleaseFailed(f"{address} names no version", cause=line(text, 80))
    return text


def is_newer(version: str, than: str) -> bool:
    """Tell whether a version comes after another one."""
    return _numbers(version) > _numbers(than)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def installer(address: str, *, deadline_s: float = ASK_S) -> bytes:
    """Return the newest release's installer; raises ReleaseFailed for one that does not have its sum."""
    listed = _get(address, "SHA256SUMS", deadline_s=deadline_s)
    rows = [_SUM.fullmatch(row) for row in listed.decode("ascii", errors="replace").splitlines()]
    sums = [row[1] for row in rows if row and row[2] == "install.sh"]
    script = _get(address, "install.sh", deadline_s=deadline_s)
    if sums != [hashlib.sha256(script).hexdigest()]:
        raise ReleaseFailed(
            f"the installer at {address} is not the one that its SHA256SUMS names",
            cause="it is damaged, or the release is just being replaced",
            hint="Run `troupe update` again in a while; if it stays so, tell whoever publishes the release.",
        )
    return script


def _get(address: str, name: str, *, deadline_s: float) -> bytes:
    until = time.monotonic() + deadline_s
    try:
        where = _secure(https.url(f"{address}/{name}"))
        for _ in range(_REDIRECTS + 1):
            left_s = max(until - time.monotonic(), 0.001)
            answer = https.exchange(https.Request("GET", where), cap_bytes=_CAP_BYTES, deadline_s=left_s)
            if answer.status == 200:
                return answer.body
            if answer.status not in (301, 302, 303, 307, 308) or "location" not in answer.headers:
                raise ReleaseFailed(f"{where.place} has no {name}", cause=f"it answered {answer.status}")
            where = _secure(where.to(answer.headers["location"]))
    except RegistryFailed as error:
        raise ReleaseFailed(error.what, cause=error.cause) from error
    except ValueError as error:
        raise ReleaseFailed(f"{address}/{name} can't be asked for", cause=line(str(error))) from error
    raise ReleaseFailed(f"{address} leads from one place to the next without an end")


def _secure(where: https.Url) -> https.Url:
    if not where.secure:
        raise ValueError("it is no https address")
    return where
