"""What whoever runs this does with the keystore: {"key": …, "asked": [words, …]} on stdin, a list of how it went out.

One process for many questions: under emulation Python takes seconds to start.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from troupe_tasks.errors import KeyFailed, TroupeError
from troupe_tasks.keystore import choose
from troupe_tasks.keystore.form import form_of
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.keystore.tiers import Tier
from troupe_tasks.paths import Paths
from troupe_tasks.secret import Secret, no_core_dumps

SERVICE = "openrouter"


def paths() -> Paths:
    """Return the places of whoever runs this."""
    return Paths.from_env({"HOME": os.path.expanduser(f"~{'op' if os.geteuid() else 'root'}")})


def do(asked: Sequence[tuple[str, ...]], key: str) -> list[dict[str, object]]:
    """Do what each tuple of words says, and return how it went; a key that is read is told as whether it is `key`."""
    return [_tried(words, key) for words in asked]


def _tried(words: tuple[str, ...], key: str) -> dict[str, object]:
    try:
        return {"fault": "", **_done(words, Secret.typed(key))}
    except TroupeError as error:
        fault = error.fault if isinstance(error, KeyFailed) else type(error).__name__
        return {"fault": str(fault), "text": f"{error} | {error.hint}"}


def _done(words: tuple[str, ...], secret: Secret) -> dict[str, object]:
    if words[0] == "strongest":
        return {"tier": choose.strongest().tier}
    store = Keystore(paths(), words[1])
    if words[0] == "check":
        return {"ok": [one.ok for one in store.check()], "why": [one.why for one in store.check()]}
    if words[0] == "put":
        if len(words) > 2:
            store.create(Tier(words[2]))
        store.put(SERVICE, secret)
        file = paths().keys(words[1]) / f"{SERVICE}{store.tier.suffix}"
        return {"form": form_of(file.read_bytes()).name, "mode": f"{file.stat().st_mode & 0o7777:04o}"}
    return {"same": store.read(SERVICE) == secret}


def main() -> None:
    if sys.argv[1:2] == ["broker"]:  # it stays, as the broker does
        no_core_dumps()
        asked = [("read", agent) for agent in sys.argv[2:]]
        print(json.dumps(do(asked, Path("/run/key").read_text(encoding="ascii"))), flush=True)
        time.sleep(600)
    told = json.load(sys.stdin)
    print(json.dumps(do([tuple(words) for words in told["asked"]], told["key"])))


if __name__ == "__main__":
    main()
