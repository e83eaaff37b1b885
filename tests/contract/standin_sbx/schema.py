"""The files that the stand-in takes, as strictly as Docker says that it does; JSON alone, which is YAML too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9.-]{0,61}[A-Za-z0-9]$")
KIT_NAME = re.compile(r"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$")
_ENVIRONMENT = {
    "schemaVersion", "name", "agent", "args", "kits", "workspace", "additionalWorkspaces", "env", "secrets",
    "registries", "bindings", "mcp", "ports", "sandboxOptions", "lifecycle",
}  # fmt: skip
_OPTIONS = {
    "template": str, "memory": str, "cpus": int, "pullPolicy": str, "profile": str, "skills": str, "display": str,
    "gpu": str, "usb": list, "writableEnvFiles": bool,
}  # fmt: skip
_MIXIN = {
    "schemaVersion", "kind", "name", "version", "displayName", "description", "sourceURL", "licenses", "locked",
    "security", "requires", "args", "permissions", "credentials", "environment", "setup", "ports", "volumes",
    "agentInstructions",
}  # fmt: skip


class BadFile(Exception):
    """A file is not as documented."""


def _read(path: Path, keys: set[str]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: {error}") from error
    if not isinstance(found, dict) or set(found) - keys:
        raise BadFile(f"{path}: unknown key {sorted(set(found) - keys)}")
    return found


def environment(path: Path) -> dict[str, Any]:
    """Return an environment file, its kits read."""
    found = _read(path, _ENVIRONMENT)
    if found.get("schemaVersion") != "1" or not isinstance(found.get("agent"), str):
        raise BadFile(f"{path}: schemaVersion and agent are required")
    if not NAME.match(found.get("name", "")) or found["name"] == "default":
        raise BadFile(f"{path}: name")
    for key, value in found.get("sandboxOptions", {}).items():
        if key not in _OPTIONS or type(value) is not _OPTIONS[key]:
            raise BadFile(f"{path}: sandboxOptions.{key}")
    if found["sandboxOptions"].get("skills", "off") not in {"off", "readonly", "readwrite"}:
        raise BadFile(f"{path}: sandboxOptions.skills")
    found["kits"] = [
        mixin(path.parent / place / "spec.yaml", found["agent"]) for place in found.get("kits", [])
    ]
    return found


def mixin(path: Path, agent: str) -> dict[str, Any]:
    """Return a mixin's specification."""
    found = _read(path, _MIXIN)
    if (
        found.get("schemaVersion") != "2"
        or found.get("kind") != "mixin"
        or not KIT_NAME.match(found.get("name", ""))
    ):
        raise BadFile(f"{path}: head")
    if found.get("requires", {}).get("agent", agent) != agent:
        raise BadFile(f"{path}: requires another agent")
    network = found.get("permissions", {}).get("network", {})
    if set(network) - {"allow", "deny"} or not all(
        isinstance(one, str) for part in network.values() for one in part
    ):
        raise BadFile(f"{path}: permissions.network")
    setup = found.get("setup", {})
    if set(setup) - {"install", "startup", "files"}:
        raise BadFile(f"{path}: setup")
    for step in setup.get("install", []):
        if set(step) - {"command", "user"} or not isinstance(step["command"], str):
            raise BadFile(f"{path}: setup.install")
    for volume in found.get("volumes", []):
        if not set(volume) <= {"path", "type", "size", "mode"} or volume.get("type", "") not in {"", "tmpfs"}:
            raise BadFile(f"{path}: volumes")
        if not str(volume.get("path", "")).startswith("/"):
            raise BadFile(f"{path}: volumes need an absolute path")
    return found


def mib(text: str) -> int:
    """Return a size in binary units."""
    match = re.fullmatch(r"([0-9]+)([mg])", text)
    if match is None:
        raise BadFile(f"invalid size {text!r}")
    return int(match[1]) * (1024 if match[2] == "g" else 1)
