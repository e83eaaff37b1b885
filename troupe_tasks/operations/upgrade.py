"""Upgrade an agent to the newest version of its kit: a move into a sandbox of that version, keeping everything it has.

When the message in the new sandbox is not answered, the agent is back in its old sandbox, version and state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict

from troupe_tasks import config, journal, locks
from troupe_tasks import record as records
from troupe_tasks.errors import KeyMissing, Refused, UsageError
from troupe_tasks.journal import Decided, Journal, Step
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.kits import local, oci, pins
from troupe_tasks.kits.model import Kit
from troupe_tasks.kits.services import Service
from troupe_tasks.kits.settings import settle as settle_settings
from troupe_tasks.operations import images, leaving, move, moving, seeding, wiring
from troupe_tasks.operations import kit as kits
from troupe_tasks.operations.house import House
from troupe_tasks.operations.kit import Found
from troupe_tasks.operations.moving import Done
from troupe_tasks.record import Record, SelfTest
from troupe_tasks.secret import Secret

if TYPE_CHECKING:
    from troupe_tasks.kits.grant import Login

SLACK_MANIFEST = "slack-manifest.json"


@dataclass(frozen=True, kw_only=True)
class Job(move.Job):
    """An upgrade under way; keys are those that were asked for now."""

    old_kit: Kit
    settings: Mapping[str, str]
    services: tuple[str, ...]
    keys: Mapping[str, Secret] = field(default_factory=dict)

    def changes(self) -> dict[str, Any]:
        """Return what else of the record is another after the upgrade."""
        return {"settings": dict(self.settings), "services": self.services}


class Upgraded(BaseModel):
    """What an upgrade did: the edits are the agent's own, of files that the new version replaced."""

    model_config = ConfigDict(frozen=True)

    agent: Record
    self_test: SelfTest
    edits_kept_in: str | None
    edits: tuple[str, ...]


@moving.or_back
def keep_keys(job: Job, done: Done) -> Decided:
    """Keep the keys that the new version requires, each proved readable."""
    record = job.record().model_copy(update={"services": job.services})
    return {"services": list(wiring.store_keys(job.house, record, job.keys))}


@moving.or_back
def seed(job: Job, done: Done) -> Decided:
    """Bring the seeded files up to the new version, and keep the agent's edits of them."""
    job.house.driver(job.record().driver).start(job.new(done))
    found = seeding.bring_up(job.house, job.moved(done), old=job.old_kit, new=job.kit)
    return {"edits": list(found)}


def switch(job: Job, done: Done) -> Decided:
    """Record the new version, or, back in the old one, let go of what only the new one has: keys, and edits kept.

    The old sandbox has those edits still; kept any longer they would be told as replaced by a later upgrade.
    """
    decided = moving.switch(job, done)
    record = job.record()
    if decided["moved"]:
        return decided
    seeding.forget(job.house, job.id, job.old_kit.version, job.kit.version)
    if record.key_tier != "none":
        kept = Keystore(job.house.paths, job.id)
        for service in sorted(set(job.services) - set(record.services)):
            with suppress(KeyMissing):
                kept.remove(service)
    return decided


def leave(job: Job, done: Done) -> Decided:
    """Remove the sandbox in which it does not live, and the old version's image once no agent uses it."""
    decided = leaving.leave(job, done)
    if not moving.passed(done):  # the next try needs the new version's image
        return decided
    removed = images.remove_unused(job.house, job.old_kit, told=job.told)
    return {**decided, "image_removed": removed}


STEPS: tuple[Step[Job], ...] = (
    Step("look", move.look, "checking that it can be done", only_looks=True),
    Step("image", moving.have_image, "getting the new version's image", only_looks=True),
    Step("plan", moving.plan, "reserving room", only_looks=True),
    Step("keys", keep_keys, "keeping the keys that it requires"),
    Step("quiesce", moving.quiesce, "letting current work finish"),
    Step("archive", move.archive, "archiving what it has"),
    Step("stop-old", moving.stop_old, "stopping the old sandbox"),
    Step("make", moving.make, "making a sandbox of the new version"),
    Step("restore", move.restore, "putting everything into it"),
    Step("settle", move.settle, "bringing its stand-ins in line"),
    Step("seed", seed, "bringing its seeds up to date"),
    Step("test", moving.test, "sending it a first message"),
    Step("switch", switch, "recording where it lives"),
    Step("go-on", moving.go_on, "starting the gateway"),
    Step("recheck", leaving.recheck, "reading its archive once more"),
    Step("leave", leave, "removing the sandbox that it left"),
)


def newest(house: House, agent_id: str, *, login: Login, told: Callable[[str], None]) -> Found | None:
    """Return the newest version of an agent's kit of the same MAJOR, None when it has that; refuse what is no upgrade.

    An upgrade that has begun goes on with the version that it began with.
    """
    record = records.load(house.paths, agent_id)
    book = Journal(house.paths, agent_id)
    book.refuse_others("upgrade")
    begun = book.unfinished()
    if begun is not None and not begun.only_looked:
        digest = begun.inputs.get("digest")
        kit = pins.pinned(house.paths, record.kit.type, str(begun.inputs["version"]))
        return Found(kit, str(digest) if digest else None)
    if not config.read(house.paths).get("registry"):
        found = Found(local.find(record.kit.type), None)
        return _accepted(house, record, found) if _newer(found.kit.version, record) else None
    known = [tag for tag in kits.opened(house, login).tags(record.kit.type) if oci.is_version(tag)]
    later = sorted((version for version in known if _newer(version, record)), key=oci.order)
    same = [version for version in later if _major(version) == _major(record.kit.version)]
    if not later:
        return None
    version = (same or later)[-1]
    _refuse_major(record, version)
    return _accepted(house, record, kits.pull(house, f"{record.kit.type}:{version}", login=login, told=told))


def _newer(version: str, record: Record) -> bool:
    return oci.order(version) > oci.order(record.kit.version)


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _refuse_major(record: Record, version: str) -> None:
    if _major(version) != _major(record.kit.version):
        raise Refused(
            f"{record.kit.type} {version} is a new kind of agent: {record.id} has {record.kit.version}",
            cause="what changes in a new MAJOR version can't be carried over",
            hint=f"Create one anew: `troupe create {record.kit.type} --name NAME`. {record.id} goes on as it is.",
        )


def _accepted(house: House, record: Record, found: Found) -> Found:
    _refuse_major(record, found.kit.version)
    old = pins.pinned(house.paths, record.kit.type, record.kit.version)
    if _manifest(old) != _manifest(found.kit):
        raise Refused(
            f"{record.kit.type} {found.kit.version} has another Slack manifest than {old.version}",
            cause="an installed Slack app can't be changed from here",
            hint=f"Create the agent anew: `troupe create {record.kit.type} --name NAME`.",
        )
    pins.pin(found.kit, house.paths)
    return found


def _manifest(kit: Kit) -> bytes | None:
    try:
        return kit.file(SLACK_MANIFEST).read_bytes()
    except FileNotFoundError:
        return None


def missing(house: House, agent_id: str, kit: Kit) -> list[Service]:
    """Return the services that a kit version requires and whose keys the agent does not have."""
    record = records.load(house.paths, agent_id)
    if record.rehearsal:
        return []
    chosen = _settings(record, kit)
    kept = Keystore(house.paths, agent_id).services()
    return [one for one in kit.services if one.required and one.applies(chosen) and one.name not in kept]


def _settings(record: Record, kit: Kit) -> dict[str, str]:
    """Return its settings in a kit version: what it has, and the default of what is new; nothing is asked."""
    if record.rehearsal:
        return dict(record.settings)
    known = {setting.name for setting in kit.settings}
    given = {name: value for name, value in record.settings.items() if name in known}
    try:
        return settle_settings(kit.settings, given)
    except UsageError as error:
        raise Refused(
            f"{record.id}'s settings do not fit {kit.name} {kit.version}: {error.what}", cause=error.cause,
            hint="Create the agent anew, or ask who publishes the kit for a version that keeps them.",
        ) from error  # fmt: skip


def upgrade(
    house: House, agent_id: str, found: Found, keys: Mapping[str, Secret], *, over_budget: bool,
    told: Callable[[str], None],
) -> Upgraded:  # fmt: skip
    """Upgrade an agent to a version of its kit, or go on with it. Raises MoveFailed when it went back."""
    with locks.agent(house.paths, agent_id):  # what it has now is what it moves with
        job = _job(house, agent_id, found, keys, over_budget=over_budget, told=told)
        inputs: Decided = {"version": found.kit.version, "digest": found.digest, "from": job.old_kit.version}
        finish = f"troupe upgrade {agent_id}"
        book, opened = moving.begin(house, agent_id, "upgrade", inputs=inputs, finish=finish, steps=STEPS)
        job = replace(job, resumed=bool(opened.done))
        done = journal.perform(book, opened, job, STEPS, told=lambda step: told(step.doing))
    result = moving.result_of(done)
    folder = seeding.place(house, agent_id, job.old_kit.version, found.kit.version)
    edits = tuple(str(path) for path in cast("list[object]", done["seed"]["edits"]))
    return Upgraded(
        agent=job.record(),
        self_test=result,
        edits=edits,
        edits_kept_in=str(folder) if folder.is_dir() else None,
    )


def _job(
    house: House, agent_id: str, found: Found, keys: Mapping[str, Secret], *, over_budget: bool,
    told: Callable[[str], None],
) -> Job:  # fmt: skip
    record = records.load(house.paths, agent_id)
    chosen = _settings(record, found.kit)
    required = {one.name for one in found.kit.services if one.required and one.applies(chosen)}
    has = {*record.services, *(() if record.rehearsal else required)}
    services = tuple(one.name for one in found.kit.services if one.name in has)
    old = pins.pinned(house.paths, record.kit.type, _from(house, record))
    return Job(
        house=house, id=agent_id, kit=found.kit, sizes=record.sizes, digest=found.digest, over_budget=over_budget,
        told=told, why="upgrade", old_kit=old, settings=chosen, services=services, keys=keys,
    )  # fmt: skip


def _from(house: House, record: Record) -> str:
    """Return the version that the upgrade begins from; after the switch the record has the new one already."""
    begun = Journal(house.paths, record.id).unfinished()
    return str(begun.inputs["from"]) if begun and begun.operation == "upgrade" else record.kit.version
