"""Bring a kit from a registry: every part proved by its digest before the next is trusted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from troupe_tasks import durable, locks
from troupe_tasks.errors import Refused, RegistryFailed
from troupe_tasks.kits import oci, pulled
from troupe_tasks.kits.model import Kit
from troupe_tasks.kits.registry import Registry
from troupe_tasks.paths import Paths

# As long as the largest kit may take to come.
_WAIT_S = 400


@dataclass(frozen=True)
class Offer:
    """What a registry has by a tag, proved to be a kit of the type that was asked for; nothing of it is kept yet."""

    name: oci.Name
    digest: str
    manifest: oci.Manifest


def offer(registry: Registry, kind: str, reference: str) -> Offer | None:
    """Return what a tag, or a digest, names now, None when it names nothing; raises RegistryFailed."""
    data = registry.manifest(kind, reference)
    if data is None:
        return None
    what = f"{registry.place.text}/{kind}:{reference}"
    manifest = oci.read(oci.Manifest, data, what=what)
    config = registry.blob(kind, manifest.config.digest, size_bytes=manifest.config.size)
    name = oci.read(oci.Name, config, what=f"the name of {what}")
    if name.type != kind or (reference[:1].isdigit() and name.version != reference):
        raise RegistryFailed(f"{what} is {name.type} {name.version}")
    return Offer(name, oci.digest(data), manifest)


def settled(registry: Registry, found: Offer, paths: Paths) -> None:
    """Refuse an offer whose version has another digest, here or behind the version's own tag."""
    known = pulled.find(paths, found.name.type, found.name.version)
    if known is not None and known.digest != found.digest:
        raise pulled.moved(paths, known, found.digest)
    tagged = registry.digest(found.name.type, found.name.version)
    if tagged != found.digest:
        raise Refused(
            f"{found.name.type}:{found.name.version} is not what `latest` says it is",
            cause=f"latest is {found.digest}, the version {tagged or 'is not there'}",
            hint="A version never moves: tell whoever publishes the kit, and use nothing of it until then.",
        )


def bring(registry: Registry, found: Offer, paths: Paths, told: Callable[[str], None]) -> Kit:
    """Return the kit of an offer, pulled if it is not here yet. Two at once make one; safe to interrupt."""
    name = found.name
    durable.make_private_dir(paths.kits)
    with locks.named(paths, f"kit-{name.type}", wait_s=_WAIT_S):
        here = pulled.kit(paths, name.type, name.version, found.digest)
        if here is not None:
            return here
        (layer,) = found.manifest.layers
        told(f"pulling {name.type} {name.version} from {registry.place.text}")
        data = registry.blob(name.type, layer.digest, size_bytes=layer.size)
        new = pulled.Pulled(name=name, digest=found.digest, registry=registry.place.text)
        return pulled.keep(paths, new, data)
