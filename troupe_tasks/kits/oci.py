"""A kit as an OCI artifact: one manifest that names, by digest, what the kit is called and its archive.

OCI image specification 1.1. The archive is a plain tar: compressed bytes differ with the library that made them,
and a kit's digest has to be the same wherever it is packed; nor can a bomb hide in what is never unpacked.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from troupe_tasks import strict
from troupe_tasks.errors import RegistryFailed
from troupe_tasks.kits import archive
from troupe_tasks.kits.model import Type, Version

MANIFEST_TYPE: Literal["application/vnd.oci.image.manifest.v1+json"] = (
    "application/vnd.oci.image.manifest.v1+json"
)
ARTIFACT_TYPE: Literal["application/vnd.troupe.kit.v1"] = "application/vnd.troupe.kit.v1"
CONFIG_TYPE: Literal["application/vnd.troupe.kit.config.v1+json"] = (
    "application/vnd.troupe.kit.config.v1+json"
)
LAYER_TYPE: Literal["application/vnd.oci.image.layer.v1.tar"] = "application/vnd.oci.image.layer.v1.tar"
LATEST = "latest"
MANIFEST_CAP_BYTES = 64 << 10
_CONFIG_CAP_BYTES = 4 << 10

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Read = TypeVar("Read", bound=BaseModel)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Name(_Part):
    """What the kit is called: the artifact's config."""

    type: Type
    version: Version


class Config(_Part):
    """Where the kit's name lies."""

    media_type: Literal["application/vnd.troupe.kit.config.v1+json"] = Field(alias="mediaType")
    digest: Digest
    size: int = Field(ge=1, le=_CONFIG_CAP_BYTES)


class Layer(_Part):
    """Where the kit's archive lies."""

    media_type: Literal["application/vnd.oci.image.layer.v1.tar"] = Field(alias="mediaType")
    digest: Digest
    size: int = Field(ge=1, le=archive.CAP_BYTES)


class Manifest(_Part):
    """The manifest of a kit, and of nothing else."""

    schema_version: Literal[2] = Field(alias="schemaVersion")
    media_type: Literal["application/vnd.oci.image.manifest.v1+json"] = Field(alias="mediaType")
    artifact_type: Literal["application/vnd.troupe.kit.v1"] = Field(alias="artifactType")
    config: Config
    layers: tuple[Layer] = Field()
    annotations: dict[str, Annotated[str, StringConstraints(max_length=1000)]] = Field(
        default_factory=dict, max_length=20
    )


@dataclass(frozen=True)
class Artifact:
    """A kit, packed: the bytes that a registry keeps of it."""

    name: Name
    manifest: bytes
    config: bytes
    layer: bytes

    @property
    def digest(self) -> str:
        """Return the digest by which the kit is pinned."""
        return digest(self.manifest)


def digest(data: bytes) -> str:
    """Return the digest of some bytes, as OCI writes it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def artifact(name: Name, layer: bytes) -> Artifact:
    """Return the artifact of a packed kit: the same bytes for the same kit, always."""
    config = _written(name.model_dump())
    manifest = _written({
        "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "artifactType": ARTIFACT_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "digest": digest(config), "size": len(config)},
        "layers": [{"mediaType": LAYER_TYPE, "digest": digest(layer), "size": len(layer)}],
    })  # fmt: skip
    return Artifact(name, manifest, config, layer)


def _written(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def read(model: type[Read], data: bytes, *, what: str) -> Read:
    """Return what a registry answered, decoded strictly; what names it. Raises RegistryFailed."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise RegistryFailed(
            f"{what} is not of the form that a kit's has", cause=strict.complaint(error)
        ) from error


def order(version: str) -> tuple[int, ...]:
    """Return a version as numbers, to compare it with others."""
    return tuple(int(part) for part in version.split("."))


def is_version(tag: str) -> bool:
    """Tell whether a tag is a version in its one spelling; others may use the registry, too."""
    return re.fullmatch(r"(0|[1-9][0-9]{0,4})(\.(0|[1-9][0-9]{0,4})){2}", tag, re.ASCII) is not None
