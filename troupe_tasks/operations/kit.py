"""Find the kit that an agent is made from, and what there is of kits: in the registry, pulled, in this checkout."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, JsonValue

from troupe_tasks import config
from troupe_tasks.errors import NotReady, UsageError
from troupe_tasks.journal import Journal
from troupe_tasks.kits import local, oci, pulled
from troupe_tasks.kits.model import EgressHost, Kit
from troupe_tasks.kits.settings import When
from troupe_tasks.operations.house import House
from troupe_tasks.sandbox import drivers
from troupe_tasks.secret import Secret
from troupe_tasks.text import line

if TYPE_CHECKING:
    from troupe_tasks.kits.grant import Login
    from troupe_tasks.kits.registry import Registry

Told = Callable[[str], None]
_REFERENCE = re.compile(
    r"(?P<kind>[a-z][a-z0-9-]{0,30})(?::(?P<version>[0-9]{1,5}(?:\.[0-9]{1,5}){2}|latest))?"
)
# Of each type, newest first: what a screen holds, and a question to the registry each.
_SHOWN_VERSIONS = 20


@dataclass(frozen=True)
class Found:
    """A kit, and its digest when it came from a registry."""

    kit: Kit
    digest: str | None


def opened(house: House, login: Login, *, place: str = "") -> Registry:
    """Return the registry of a place, or the one that is set; raises UsageError."""
    from troupe_tasks.kits.registry import Place, Registry

    text = config.checked("registry", place) if place else config.read(house.paths).get("registry")
    if not text:
        raise UsageError(
            "no registry is set", hint="Set one: `troupe config set registry registry.example.com/kits`."
        )
    return Registry(Place.of(text), login)


def for_create(house: House, agent_id: str, kind: str, *, login: Login, told: Told) -> Found:
    """Return the kit that a new agent is made from; an interrupted create goes on with the one it began with."""
    begun = _begun(house, agent_id, kind)
    if begun is not None:
        version, digest = begun
        here = pulled.kit(house.paths, kind, version, digest)
        return (
            Found(here, digest)
            if here is not None
            else _by_digest(house, agent_id, kind, digest, login=login, told=told)
        )
    if not config.read(house.paths).get("registry"):
        return Found(local.find(kind), None)
    return pull(house, kind, login=login, told=told)


def hand_over(driver: str, given: Mapping[str, Secret]) -> None:
    """Give a driver's runtime the tokens that registries took, each HOST[:PORT] its own."""
    from troupe_tasks.kits import grant

    for place, token in given.items():
        drivers.hand_over(driver, place, *grant.parted(token))


def _begun(house: House, agent_id: str, kind: str) -> tuple[str, str] | None:
    """Return version and digest of the kit that an unfinished create of this agent pinned."""
    unfinished = Journal(house.paths, agent_id).unfinished()
    inputs: Mapping[str, JsonValue] = (
        unfinished.inputs if unfinished and unfinished.operation == "create" else {}
    )
    version, digest = inputs.get("version"), inputs.get("digest")
    if inputs.get("kit") != kind or not isinstance(version, str) or not isinstance(digest, str):
        return None
    return version, digest


def _by_digest(house: House, agent_id: str, kind: str, digest: str, *, login: Login, told: Told) -> Found:
    from troupe_tasks.kits.pull import bring, offer

    registry = opened(house, login)
    found = offer(registry, kind, digest)
    if found is None:
        raise NotReady(
            f"{registry.place.text} no longer has {kind} {digest}, which this create began with",
            hint=f"Give the agent up (`troupe delete {agent_id}`), then create it anew with the {kind} of today.",
        )
    return Found(bring(registry, found, house.paths, told), digest)


def pull(house: House, reference: str, *, login: Login, told: Told) -> Found:
    """Return the kit that TYPE or TYPE:VERSION names in the registry, pulled and pinned by its digest."""
    from troupe_tasks.kits.pull import bring, offer, settled

    kind, version = _named(reference)
    registry = opened(house, login)
    told(f"asking {registry.place.text} for {kind}")
    found = offer(registry, kind, version or oci.LATEST)
    if found is None:
        raise UsageError(f"{registry.place.text} has no {kind}:{version or oci.LATEST}",
                         hint="`troupe kit list` shows what there is.")  # fmt: skip
    settled(registry, found, house.paths)
    return Found(bring(registry, found, house.paths, told), found.digest)


def _named(reference: str) -> tuple[str, str]:
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise UsageError(
            f"{line(reference, 60)!r} is no kit", hint="It is TYPE, or TYPE:VERSION as in hermes:1.2.3."
        )
    return found["kind"], found["version"] or ""


class Version(BaseModel):
    """A version of a kit: its digest in the registry, its digest as pulled here, and whether latest names it."""

    model_config = ConfigDict(frozen=True)

    type: str
    version: str
    latest: bool
    in_registry: str | None
    pulled: str | None
    own: bool

    @property
    def moved(self) -> bool:
        """Tell whether the registry has something else under this version than what was pulled."""
        return None not in (self.in_registry, self.pulled) and self.in_registry != self.pulled


class Kits(BaseModel):
    """What there is of kits; complete is false when the registry does not tell which types it has."""

    model_config = ConfigDict(frozen=True)

    registry: str | None
    complete: bool
    versions: tuple[Version, ...]


def kits(house: House, *, login: Login) -> Kits:
    """Return the kits of the registry (or, where none is set, of the checkout) and those that were pulled."""
    here = {(one.name.type, one.name.version): one.digest for one in pulled.everything(house.paths)}
    place = config.read(house.paths).get("registry")
    if not place:
        brought = {(kit.name, kit.version) for kit in map(local.find, local.types())}
        rows = [_version(*key, None, here.get(key), own=key in brought) for key in {*here, *brought}]
        return Kits(registry=None, complete=True, versions=_sorted(rows))
    registry = opened(house, login)
    told = registry.types()
    # No guesses: a registry may say of a kit that it does not have that it is closed, and a token would be asked.
    types = {*(told or ()), *(kind for kind, _ in here)}
    there = {(kind, version): digest for kind in types for version, digest in _tags(registry, kind).items()}
    latest = {(kind, digest) for (kind, tag), digest in there.items() if tag == oci.LATEST}
    keys = {key for key in {*there, *here} if key[1] != oci.LATEST}
    rows = [
        _version(*key, there.get(key), here.get(key), latest=(key[0], there.get(key, "")) in latest)
        for key in keys
    ]
    return Kits(registry=place, complete=told is not None, versions=_sorted(rows))


def _tags(registry: Registry, kind: str) -> dict[str, str]:
    tags = registry.tags(kind)
    versions = sorted((tag for tag in tags if oci.is_version(tag)), key=oci.order, reverse=True)[
        :_SHOWN_VERSIONS
    ]
    asked = {
        tag: registry.digest(kind, tag) for tag in [*versions, *(tag for tag in tags if tag == oci.LATEST)]
    }
    return {tag: digest for tag, digest in asked.items() if digest is not None}


def _version(
    kind: str,
    version: str,
    there: str | None,
    here: str | None,
    *,
    latest: bool = False,
    own: bool = False,
) -> Version:
    return Version(
        type=kind, version=version, latest=latest, in_registry=there, pulled=here, own=own
    )  # fmt: skip


def _sorted(rows: list[Version]) -> tuple[Version, ...]:
    return tuple(sorted(rows, key=lambda row: (row.type, oci.order(row.version))))


class KitService(BaseModel):
    """A service that a kit's agents need a key for, or can have one for."""

    model_config = ConfigDict(frozen=True)

    name: str
    line: str
    required: bool
    hosts: tuple[str, ...]
    when: When | None


class KitSetting(BaseModel):
    """A setting that is asked at create."""

    model_config = ConfigDict(frozen=True)

    name: str
    ask: str
    form: str
    default: str | None
    when: When | None


class Inspected(BaseModel):
    """What a kit says about itself."""

    model_config = ConfigDict(frozen=True)

    type: str
    version: str
    digest: str | None
    summary: str
    cpus: int
    memory_mib: int
    storage_mib: int
    docker_mib: int
    services: tuple[KitService, ...]
    settings: tuple[KitSetting, ...]
    egress: tuple[EgressHost, ...]


def inspect(house: House, reference: str, *, login: Login, told: Told) -> Inspected:
    """Return what a kit says about itself: of the registry (pulled for it), else of what is here."""
    found = _to_inspect(house, reference, login=login, told=told)
    kit = found.kit
    return Inspected(
        type=kit.name, version=kit.version, digest=found.digest, summary=kit.summary, cpus=kit.sizes.cpus,
        memory_mib=kit.sizes.memory_mib, storage_mib=kit.sizes.storage_mib, docker_mib=kit.sizes.docker_mib,
        egress=kit.egress,
        services=tuple(
            KitService(
                name=one.name, line=one.line, required=one.required, when=one.when,
                hosts=(*one.hosts, *((f"that of the setting {one.hosts_from}",) if one.hosts_from else ())),
            ) for one in kit.services
        ),
        settings=tuple(
            KitSetting(name=one.name, ask=one.ask, form=one.form, default=one.default, when=one.when)
            for one in kit.settings
        ),
    )  # fmt: skip


def _to_inspect(house: House, reference: str, *, login: Login, told: Told) -> Found:
    kind, version = _named(reference)
    here = pulled.find(house.paths, kind, version) if version and version != oci.LATEST else None
    if here is not None and (kit := pulled.kit(house.paths, kind, version, here.digest)) is not None:
        return Found(kit, here.digest)
    if config.read(house.paths).get("registry"):
        return pull(house, reference, login=login, told=told)
    kit = local.find(kind)
    if version not in ("", oci.LATEST, kit.version):
        raise UsageError(f"there is no {kind} {version} here, but {kit.version}", hint="No registry is set.")
    return Found(kit, None)
