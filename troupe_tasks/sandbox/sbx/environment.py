"""What a sandbox is made from, as files of its folder: sbxenv.yaml, the agent's mixin, and storage.env.

The first two are written as JSON, which is YAML too. Nothing of the host is mounted, no key and no other secret is in
them, and the network is denied: the only way out is the tunnel to the broker.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from troupe_tasks import durable
from troupe_tasks.errors import Refused
from troupe_tasks.host import memory
from troupe_tasks.sandbox.protocol import SandboxSpec, Sizes
from troupe_tasks.sizes import show_mib

LEAST_MEMORY_MIB = 512
LEAST_DOCKER_MIB = 512  # sbx makes this disk in any case
_INSTALL = (
    "mkdir -p /state /workspace /run/troupe/egress /run/troupe/guest && "
    "for folder in /state /workspace; do "
    'test "$(stat -c %u $folder)" = 1000 || { chown 1000:1000 $folder && chmod 700 $folder; }; done'
)


def disks(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which sbx keeps its sandboxes' disks."""
    moved = env.get("SANDBOXES_STORAGE_ROOT", "")
    if moved.startswith("/"):
        return Path(moved)
    state = env.get("XDG_STATE_HOME", "")
    return Path(state if state.startswith("/") else f"{env.get('HOME', '/')}/.local/state", "sandboxes")


def most_memory_mib(total_mib: int) -> int:
    """Return the most memory that sbx gives one sandbox: three quarters of the machine's."""
    return max(LEAST_MEMORY_MIB, total_mib * 3 // 4)


def refuse(*, memory_mib: int, docker_mib: int) -> None:
    """Refuse sizes that sbx does not make."""
    total = memory.total_mib()
    if memory_mib < LEAST_MEMORY_MIB:
        raise Refused(
            f"sbx makes no sandbox with less than {LEAST_MEMORY_MIB} MiB of memory",
            hint=f"Ask for {LEAST_MEMORY_MIB} MiB or more (--memory).",
        )
    if total is not None and memory_mib > (most := most_memory_mib(total)):
        raise Refused(
            f"sbx gives no sandbox more than three quarters of the machine's memory, {show_mib(most)}",
            hint="Ask for less (--memory).",
        )
    if docker_mib < LEAST_DOCKER_MIB:
        raise Refused(
            f"sbx makes no Docker disk of less than {LEAST_DOCKER_MIB} MiB",
            hint=f"Ask for {LEAST_DOCKER_MIB}MiB or more (--docker).",
        )


def write(folder: Path, spec: SandboxSpec, *, name: str, template: str) -> Path:
    """Write a sandbox's three files and return the environment file."""
    durable.make_private_dir(folder / "mixin")
    durable.write(folder / "mixin" / "spec.yaml", _text(_mixin()))
    durable.write(
        folder / "storage.env",
        "".join(f"{key}={size}\n" for key, size in storage(spec.sizes).items()).encode(),
    )
    durable.write(folder / "sbxenv.yaml", _text(_sandbox(spec, name=name, template=template)))
    return folder / "sbxenv.yaml"


def storage(sizes: Sizes) -> dict[str, str]:
    """Return the variables by which the creating command is told the disks' sizes: there is no flag for them."""
    return {
        "DOCKER_SANDBOXES_ROOT_SIZE": f"{sizes.storage_mib}m",
        "DOCKER_SANDBOXES_DOCKER_SIZE": f"{sizes.docker_mib}m",
    }


def _sandbox(spec: SandboxSpec, *, name: str, template: str) -> dict[str, Any]:
    return {
        "schemaVersion": "1",
        "name": name,
        "agent": "shell",
        "kits": ["./mixin"],
        "sandboxOptions": {
            "template": template, "memory": f"{spec.sizes.memory_mib}m", "cpus": spec.sizes.cpus,
            "pullPolicy": "never", "skills": "off",
        },
    }  # fmt: skip


def _mixin() -> dict[str, Any]:
    return {
        "schemaVersion": "2",
        "kind": "mixin",
        "name": "troupe-agent",
        "description": "What troupe needs inside: the agent's folders, and no network of Docker's.",
        "requires": {"agent": "shell"},
        "permissions": {"network": {"deny": ["**"]}},
        # Where sbx passes this over, a start empties the folder that is kept.
        "volumes": [{"path": "/tmp", "type": "tmpfs"}],
        "setup": {"install": [{"command": _INSTALL, "user": "0"}]},
    }


def _text(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=2).encode() + b"\n"
