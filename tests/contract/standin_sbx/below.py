"""What the stand-in has in the place of virtual machines: our own capsules, by gVisor."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from troupe_tasks.paths import Paths
from troupe_tasks.sandbox.capsule import gvisor
from troupe_tasks.sandbox.capsule.driver import Capsule
from troupe_tasks.sandbox.protocol import EGRESS_DIR, GUEST_DIR, SandboxSpec, Sizes

_OWN = (EGRESS_DIR, GUEST_DIR)
# Docker's first process: it reaps, and ends when it is asked to.
_FIRST = """\
import os, signal
both = {signal.SIGCHLD, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, both)
while signal.sigwait(both) != signal.SIGTERM:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
"""
_config = gvisor._config


def _docker_like(saved: Any, places: Any) -> dict[str, Any]:
    """Nothing of troupe's is in a sandbox of Docker's by itself; these two folders are root's, and empty."""
    made = _config(saved, places)
    for mount in made["mounts"]:
        if mount["destination"] in _OWN:
            mount |= {"type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=0755"]}
        elif mount["destination"] == "/tmp":
            # Whether Docker honours a mixin's volume is not known; without, /tmp is on the disk and kept.
            kept = saved.spec.egress / "tmp"
            if not kept.exists():
                kept.mkdir()
                kept.chmod(0o1777)
                os.chown(kept, saved.uid_base, saved.uid_base)
            mount |= {"type": "bind", "source": str(places.egress / "tmp")}
            mount |= {"options": ["bind", "rw", "nosuid", "nodev"]}
    made["process"]["args"] = ["/usr/bin/python3", "-I", "-S", "-c", _FIRST]
    return made


class Below(Capsule):
    """The capsule driver, but for what its sandboxes hold."""

    def __init__(self, home: Path) -> None:
        gvisor._config = _docker_like
        self.paths = Paths.from_env({"HOME": str(home)})
        super().__init__(self.paths, [gvisor.Gvisor(self.paths)])

    def _wait_until_ready(self, sandbox_id: str) -> None:
        """Docker's sandboxes have no way to a broker to wait for."""

    def make(self, name: str, image: Path, sizes: Sizes) -> None:
        """Make and start a sandbox."""
        egress = self.paths.egress(below_id(name)) / "socket"
        self.create(SandboxSpec(id=below_id(name), sizes=sizes, image=image, egress=egress))
        self.start(below_id(name))


def below_id(name: str) -> str:
    """Return the capsule's ID of a sandbox's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def runtime(home: Path) -> list[str]:
    """Return the program and flags of the runtime, so that an exec need not load troupe."""
    paths = Paths.from_env({"HOME": str(home)})
    binary = gvisor.find(paths)
    assert binary is not None
    return gvisor.flags(binary, paths.run / "runsc")
