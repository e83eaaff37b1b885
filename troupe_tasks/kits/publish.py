"""Put a kit into a registry, under a version that never moves from then on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from troupe_tasks.errors import Refused, UsageError
from troupe_tasks.kits import archive, local, oci, pull
from troupe_tasks.kits.registry import Registry


@dataclass(frozen=True)
class Published:
    """What was published; latest is the version that latest names now."""

    artifact: oci.Artifact
    latest: str


def packed(folder: Path) -> oci.Artifact:
    """Return the artifact of the kit in a folder, which is named as the kit is; raises UsageError and NotReady."""
    whole = folder.resolve()
    if not (whole / "kit.toml").is_file():
        raise UsageError(
            f"there is no kit in {folder}", cause="it has no kit.toml", hint="Name a kit's folder."
        )
    kit = local.read(whole, name=whole.name)
    return oci.artifact(oci.Name(type=kit.name, version=kit.version), archive.pack(whole))


def publish(artifact: oci.Artifact, registry: Registry, told: Callable[[str], None]) -> Published:
    """Push a kit, then have `latest` name it, unless that names a newer one. Safe to interrupt and to run again.

    Raises Refused when the registry has that version with another digest.
    """
    name = artifact.name
    there = registry.manifest(name.type, name.version)
    if there is not None and oci.digest(there) != artifact.digest:
        raise Refused(
            f"{registry.place.text} has another {name.type} {name.version} already",
            cause=f"there it is {oci.digest(there)}, here {artifact.digest}",
            hint="A version never moves: raise the version in kit.toml.",
        )
    if there is None:
        told(f"pushing {name.type} {name.version}")
        # The manifest last: a registry that has it has all of it.
        for blob in (artifact.config, artifact.layer):
            registry.upload(name.type, blob)
        registry.tag(name.type, name.version, artifact.manifest)
    latest = pull.offer(registry, name.type, oci.LATEST)
    if latest is not None and oci.order(latest.name.version) > oci.order(name.version):
        return Published(artifact, latest.name.version)
    if latest is None or latest.digest != artifact.digest:
        told(f"moving {oci.LATEST}")
        registry.tag(name.type, oci.LATEST, artifact.manifest)
    return Published(artifact, name.version)
