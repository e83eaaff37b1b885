"""Measure `troupe list` beside 200 recorded agents against one agent. Goals: one call of the runtime, at most 1.5.

Run: TROUPE_TEST_HOME=HOME python tests/bench/bench_list.py [--rounds N] [--strict]. The agents are made up, yet
whole: each has its record, a sandbox's folder, the receipts of a create and a gateway among the services.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench import stage
from troupe_tasks import durable, process
from troupe_tasks import record as records
from troupe_tasks.journal import Journal
from troupe_tasks.operations import create, inventory
from troupe_tasks.operations.house import House, gateway_name
from troupe_tasks.record import KitPin, Record, Sizes
from troupe_tasks.sandbox.capsule.saved import Saved, disk
from troupe_tasks.sandbox.protocol import Isolation, SandboxSpec
from troupe_tasks.sandbox.protocol import Sizes as SandboxSizes
from troupe_tasks.services import settings
from troupe_tasks.services.protocol import Service
from troupe_tasks.services.supervisor import Supervisor

GOAL = 1.5
MANY = 200
_RUNTIME = "runsc"
_INNER = "list without the start of Python"


def fill(house: House, count: int) -> None:
    """Record count agents that are stopped."""
    paths = house.paths
    durable.make_private_dir(paths.run / "runsc")  # without it the runtime has nothing to be asked for
    for number in range(count):
        agent_id = f"bench-{number}"
        records.save(paths, Record(
            id=agent_id, name=f"Bench {number}", kit=KitPin(type="hermes", version="0.1.0"), driver="capsule",
            isolation="gvisor", rehearsal=True, key_tier="none", created_at=datetime.now(UTC).isoformat(),
            sizes=Sizes(cpus=2, memory_mib=2048, storage_mib=2048), wanted="down",
        ))  # fmt: skip
        _sandbox(house, agent_id, number)
        if number == 0:
            _receipts(house, agent_id)
        else:  # receipts do not name their agent
            shutil.copytree(paths.receipts("bench-0"), paths.receipts(agent_id))
    _services(house, count)


def _sandbox(house: House, agent_id: str, number: int) -> None:
    folder = durable.make_private_dir(house.paths.sandbox(agent_id))
    sizes = SandboxSizes(cpus=2, memory_mib=2048, storage_mib=2048)
    spec = SandboxSpec(id=agent_id, sizes=sizes, image=Path("/nowhere"), egress=Path("/nowhere"))
    kept = Saved(
        spec=spec, identity=f"{number:032x}", isolation=Isolation.GVISOR, uid_base=500_000_000 + number * 65_536,
        created_at=datetime.now(UTC),
    )  # fmt: skip
    (folder / "spec.json").write_text(kept.model_dump_json(indent=1), encoding="utf-8")
    (folder / "spec.json").chmod(0o600)
    disk(house.paths, kept).touch(mode=0o600)


def _receipts(house: House, agent_id: str) -> None:
    book = Journal(house.paths, agent_id)
    book.open("create", inputs={"name": agent_id}, finish=f"troupe create hermes --name {agent_id}")
    for step in create.STEPS:
        book.write("create", step.name, {})
    book.write("create", "end", {})


def _services(house: House, count: int) -> None:
    folder = durable.make_private_dir(house.paths.run / "supervisor")
    durable.make_private_dir(folder / "programs")
    for number in range(count):
        agent_id = f"bench-{number}"
        service = Service(gateway_name(agent_id), ("true",), house.paths.logs(agent_id) / "gateway.log")
        settings.save(folder, settings.spec(service, folder))
        durable.make_private_dir(house.paths.logs(agent_id))
    assert isinstance(house.services, Supervisor)
    house.services.ensure_running()


def command_s(house: House, count: int) -> tuple[float, float]:
    """Run the whole command and return how long it took, and its CPU time."""
    env = process.scrubbed({"HOME": str(house.paths.data.parents[2])})
    spent, begun = stage.cpu_s(), time.perf_counter()
    done = subprocess.run(
        stage.command("list", "--json"), env=env, cwd=stage.ROOT, stdin=subprocess.DEVNULL, capture_output=True,
        check=True,
    )  # fmt: skip
    took = time.perf_counter() - begun
    assert len(json.loads(done.stdout)) == count
    return took, stage.cpu_s() - spent


def inside_s(house: House, count: int) -> float:
    """List in this process and return how long it took."""
    begun = time.perf_counter()
    assert len(inventory.agents(house)) == count
    return time.perf_counter() - begun


def runtime_calls(house: House) -> int:
    """Return how many times one list starts the runtime."""
    seen: list[str] = []
    run = process.run

    def counting(argv: Any, **options: Any) -> process.Done:
        seen.append(Path(str(argv[0])).name)
        return run(argv, **options)

    process.run = counting
    try:
        inventory.agents(house)
    finally:
        process.run = run
    return seen.count(_RUNTIME)


def main() -> int:
    """Print the calls, the medians and the median ratio of the pairs."""
    asked = stage.asked(__doc__, rounds=20)
    with stage.house(with_image=False) as few, stage.house(with_image=False) as many:
        fill(few, 1)
        fill(many, MANY)
        calls = runtime_calls(many)
        for house, count in ((few, 1), (many, MANY)):
            command_s(house, count)
            inside_s(house, count)
        runs = [(command_s(many, MANY), command_s(few, 1)) for _ in range(asked.rounds)]
        pairs, spent = ([(a[side], b[side]) for a, b in runs] for side in (0, 1))
        inner = [(inside_s(many, MANY), inside_s(few, 1)) for _ in range(asked.rounds)]
        for house in (few, many):
            for tree in (house.paths.agents, house.paths.sandboxes):
                durable.remove_tree(tree)
    for name, measured in (("list", pairs), ("CPU time of list", spent), (_INNER, inner)):
        mine, one = ([pair[side] for pair in measured] for side in (0, 1))
        print(f"{stage.told(f'{name} of {MANY}', mine)}; {stage.told('of one', one)}")
    print(f"CPU time of list: ratio {stage.paired(spent):.2f}; {_INNER}: ratio {stage.paired(inner):.2f}")
    print(f"calls of the runtime for {MANY} agents: {calls} (goal 1)")
    missed = stage.judged("list", stage.paired(pairs), goal=GOAL, strict=asked.strict)
    return missed or int(asked.strict and calls != 1)


if __name__ == "__main__":
    sys.exit(main())
