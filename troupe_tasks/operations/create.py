"""Create an agent: from a kit and a name to a running Hermes that has answered once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from troupe_tasks import journal, locks, resources, sizes
from troupe_tasks import record as records
from troupe_tasks.errors import AlreadyExists
from troupe_tasks.journal import Decided, Journal, Step
from troupe_tasks.kits import image, pins
from troupe_tasks.kits.model import Kit
from troupe_tasks.operations import gateway, outfit, room, wiring
from troupe_tasks.operations.house import House
from troupe_tasks.operations.selftest import self_test
from troupe_tasks.record import KeyTier, KitPin, Policy, Record, SelfTest, Sizes
from troupe_tasks.secret import Secret

Done = Mapping[str, Decided]


@dataclass(frozen=True)
class Wish:
    """What the person asked for; services are those that it gets a key for, keys those that were given now.

    digest is that of a kit from a registry.
    """

    id: str
    name: str
    kit: Kit
    rehearsal: bool
    wanted: sizes.Wanted
    digest: str | None = None
    soul: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    services: tuple[str, ...] = ()
    keys: Mapping[str, Secret] = field(default_factory=dict)
    key_tier: KeyTier = "none"
    policy: Policy = "balanced"
    over_budget: bool = False

    def inputs(self) -> dict[str, Any]:
        """Return what makes this the same create as an interrupted one (never a key, nor whether it was forced)."""
        import hashlib

        asked = room.named(self.wanted)
        soul = hashlib.sha256(self.soul.encode()).hexdigest() if self.soul is not None else None
        kit = {
            "kit": self.kit.name,
            "version": self.kit.version,
            **({"digest": self.digest} if self.digest else {}),
        }
        chosen = {"settings": dict(self.settings), "services": list(self.services), "policy": self.policy}
        return {"name": self.name, "rehearsal": self.rehearsal, "soul": soul, **kit, **asked, **chosen}


@dataclass(frozen=True)
class Job:
    """A create under way."""

    house: House
    wish: Wish
    told: Callable[[str], None]

    def record(self) -> Record:
        """Return the agent's record, which the first step wrote."""
        return records.load(self.house.paths, self.wish.id)


def look(job: Job, done: Done) -> Decided:
    """Check the sizes before anything is written: what is refused here was never begun."""
    if "reserve" not in done:
        _fitting(job)
    return {}


def _fitting(job: Job) -> Sizes:
    """Return the sizes that it gets. Raises OverBudget, and Refused for what its driver does not make."""
    wish, house = job.wish, job.house
    given = room.settled(house, wish.id, wish.wanted)
    verdict = room.verdict(house, wish.id, given)
    verdict.raise_refusals()
    if not wish.over_budget:
        verdict.raise_over()
    return given


def reserve(job: Job, done: Done) -> Decided:
    """Check the sizes and write the record, which from now on holds the room, in one moment of the machine."""
    wish, house = job.wish, job.house
    with locks.machine(house.paths):
        given = _fitting(job)
        driver = house.driver()
        records.save(house.paths, Record(
            id=wish.id, name=wish.name, driver=driver.name,
            kit=KitPin(type=wish.kit.name, version=wish.kit.version, digest=wish.digest),
            isolation=driver.isolation().value, rehearsal=wish.rehearsal, key_tier=wish.key_tier, sizes=given,
            policy=wish.policy, settings=dict(wish.settings), services=wish.services,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        ))  # fmt: skip
        outfit.keep_soul(house, wish.id, wish.soul)
    return {"sizes": given.model_dump()}


def keep_keys(job: Job, done: Done) -> Decided:
    """Keep its keys, each proved readable, before anything is made that would use them."""
    return {"services": list(wiring.store_keys(job.house, job.record(), job.wish.keys))}


def build_image(job: Job, done: Done) -> Decided:
    """Have the kit's image, which all agents of this kit version share."""
    pins.pin(job.wish.kit, job.house.paths)
    return {"digest": image.ensure_image(job.wish.kit, job.house.paths, job.told).digest}


def open_egress(job: Job, done: Done) -> Decided:
    """Say what the agent may reach and with which keys, and have the broker take it up."""
    wiring.open_way_out(job.house, job.record(), job.wish.kit)
    return {}


def make_sandbox(job: Job, done: Done) -> Decided:
    """Make the sandbox and write down which one it is."""
    record = job.record()
    root = image.ensure_image(job.wish.kit, job.house.paths, job.told).path
    spec = outfit.spec(job.house, record, job.wish.kit, image=root)
    return {"identity": outfit.make(job.house, record, spec)}


def boot(job: Job, done: Done) -> Decided:
    """Start the sandbox."""
    record = job.record()
    job.house.driver(record.driver).start(record.sandbox)
    return {}


def furnish(job: Job, done: Done) -> Decided:
    """Put in the SOUL, the seeds and the settings, by a program of ours inside."""
    outfit.furnish(job.house, job.record(), job.wish.kit)
    return {}


def start_gateway(job: Job, done: Done) -> Decided:
    """Start the agent's gateway, which the services keep running from now on."""
    gateway.start(job.house, job.record())
    return {}


def test(job: Job, done: Done) -> Decided:
    """Send one message and keep how it went; a failure leaves the agent created."""
    record = job.record()
    job.house.driver(record.driver).start(record.sandbox)
    result = self_test(job.house, job.record(), job.wish.kit)
    return {"passed": result.passed, "cause": result.cause}


STEPS: tuple[Step[Job], ...] = (
    Step("look", look, "looking at the machine", only_looks=True),
    Step("reserve", reserve, "reserving room"),
    Step("keys", keep_keys, "settling its keys"),
    Step("image", build_image, "getting the kit's image"),
    Step("egress", open_egress, "opening its way out"),
    Step("sandbox", make_sandbox, "making the sandbox"),
    Step("boot", boot, "starting the sandbox"),
    Step("furnish", furnish, "putting in its files"),
    # Before the gateway: two Hermes processes must not make one new home at the same time.
    Step("self-test", test, "sending it a first message"),
    Step("gateway", start_gateway, "starting the gateway"),
)


def create(house: House, wish: Wish, *, finish: str, told: Callable[[str], None]) -> tuple[Record, SelfTest]:
    """Create an agent, or go on creating it; return its record and how its self-test went."""
    resources.guest_dir()
    with locks.agent(house.paths, wish.id):
        book = Journal(house.paths, wish.id)
        pending = book.unfinished()
        begun = pending is not None and (pending.operation == "create" or not pending.only_looked)
        if not begun and records.find(house.paths, wish.id) is not None:
            raise AlreadyExists(f"there is an agent {wish.id} already")
        opened = book.open("create", inputs=wish.inputs(), finish=finish, steps=STEPS)
        journal.perform(book, opened, Job(house, wish, told), STEPS, told=lambda step: told(step.doing))
    record = records.load(house.paths, wish.id)
    result = records.last_self_test(house.paths, wish.id)
    if result is None:
        raise RuntimeError("the self-test left no result")
    return record, result
