"""Keys that the agent never sees: one agent's life with a real provider's key, and where that key is found."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.house import House, kits_kept, loops, wait_until
from tests.integration.keyed import ID, create, keyed, needs_port
from tests.integration.provider import FILES, MODEL, OTHER, Provider
from tests.integration.terminal import Terminal
from troupe_tasks import record as records

# What nobody may ever see outside the key's own file, the broker and the provider.
CANARY = "canary-4c1f9d0e7b2a4f63a8e5d7c90b1e2f34"
SECOND = "canary-second-b7f3e1a95d0c4e82"
FOR_FILES = "canary-files-9a8b7c6d5e4f3a2b"

pytestmark = [pytest.mark.network, pytest.mark.real_home, pytest.mark.timeout(300), needs_port]


class Watch:
    """Looks through every process's arguments and environment, over and over, for the canaries."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.rounds = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _look(self) -> None:
        while not self._over.is_set():
            self.rounds += 1
            for pid in filter(str.isdecimal, os.listdir("/proc")):
                for name in ("cmdline", "environ"):
                    with suppress(OSError):
                        data = Path("/proc", pid, name).read_bytes()
                        if any(key.encode() in data for key in (CANARY, SECOND, FOR_FILES)):
                            self.found.add(f"{name} of {data[:200]!r}")
            self._over.wait(0.01)


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    with Watch() as found:
        yield found


@pytest.fixture(scope="module")
def there(house: House, watch: Watch) -> Iterator[Provider]:
    """Yield the provider, whose good key the agent has."""
    with keyed(house, key=CANARY) as found:
        yield found


@pytest.fixture
def agent(house: House, there: Provider) -> House:
    """Return the house once the agent is running."""
    wait_until(lambda: state(house) == "running")
    there.asked.clear()
    return house


def state(house: House) -> str:
    found = json.loads(house.troupe("list", "--json").out)
    return str(next(one["state"] for one in found if one["id"] == ID))


def inside(house: House, *argv: str) -> str:
    """Run a command in the agent's sandbox, with the environment that it has there."""
    where = records.load(house.paths, ID).sandbox
    return house.rooms.driver().run(where, list(argv), deadline_s=60).stdout.decode(errors="replace")


def stand_in(house: House, variable: str) -> str:
    lines = inside(house, "cat", "/state/hermes/.env").splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith(f"{variable}="))


def curl(house: House, url: str, *words: str) -> tuple[int, str]:
    """Return the status and body of one request from inside."""
    said = inside(house, "curl", "-sS", "-m", "20", "-w", "\n%{http_code}", *words, url)
    body, _, status = said.rpartition("\n")
    return int(status or 0), body


def test_the_provider_gets_the_key_and_the_agent_has_a_stand_in(agent: House, there: Provider) -> None:
    done = agent.troupe("chat", ID, "hello")
    assert done.status == 0, done
    assert there.saw(f"Bearer {CANARY}")
    held = stand_in(agent, "MODEL_API_KEY")
    assert held.startswith("sk-probe-")
    assert not there.saw(held)
    assert CANARY not in inside(agent, "env") + inside(agent, "cat", "/state/hermes/.env")


def test_the_key_is_in_no_file_but_its_own(agent: House) -> None:
    own = agent.home / ".local/state/credentials" / ID / "model.key"
    assert own.read_text(encoding="ascii").strip() == CANARY
    assert own.stat().st_mode & 0o777 == 0o400
    holders = [path for path in everything(agent.home) if holds(path, CANARY)]
    assert holders == [own]


def everything(home: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(home):
        folders[:] = [name for name in folders if name not in ("images", "tools")]
        yield from (path for name in names if (path := Path(place, name)).is_file() and not path.is_symlink())
    yield from (path for path in loops() if path.exists())  # not those of a disk that somebody has removed


def holds(path: Path, text: str) -> bool:
    """Tell whether a file holds text, however large it is; holes are skipped."""
    wanted, kept = text.encode(), b""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        at = 0
        while at < end:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                return False
            os.lseek(file.fileno(), at, os.SEEK_SET)
            data = os.read(file.fileno(), 1 << 20)
            if wanted in kept + data:
                return True
            kept, at = data[-len(wanted) :], at + len(data)
    return False


def test_the_key_is_in_the_memory_of_no_process_of_the_agent(agent: House) -> None:
    assert agent.troupe("chat", ID, "hello").status == 0
    mark = str(agent.paths.sandbox(ID))
    looked = 0
    for pid, words in agent.processes():
        ours = words[0] in ("runsc-sandbox", "runsc-gofer") and any(mark in word for word in words)
        if ours or "gateway" in words:
            looked += 1
            assert not in_memory(pid, CANARY), words
    assert looked >= 2
    broker = next(pid for pid, words in agent.processes() if "troupe_tasks.egress.broker" in words)
    assert in_memory(broker, CANARY), "the search itself does not work"


def in_memory(pid: int, text: str) -> bool:
    wanted = text.encode()
    with (
        Path("/proc", str(pid), "maps").open(encoding="utf-8") as maps,
        Path("/proc", str(pid), "mem").open("rb") as memory,
    ):
        for line in maps:
            span, rights = line.split()[:2]
            if not rights.startswith("r") or line.rstrip().endswith(("[vvar]", "[vsyscall]")):
                continue
            first, last = (int(part, 16) for part in span.split("-"))
            for at in range(first, last, 16 << 20):
                with suppress(OSError, ValueError):
                    memory.seek(at)
                    if wanted in memory.read(min(16 << 20, last - at)):
                        return True
    return False


def test_a_stand_in_opens_nothing_elsewhere(agent: House, there: Provider) -> None:
    held = stand_in(agent, "MODEL_API_KEY")
    for host in (FILES, OTHER):
        status, body = curl(agent, f"https://{host}/v1/models", "-H", f"Authorization: Bearer {held}")
        assert status in (0, 403), body
    status, body = curl(agent, f"https://{MODEL}/v1/models?key={held}")
    assert status == 401, body
    assert not there.saw(CANARY)
    status, body = curl(
        agent,
        f"https://{MODEL}/redirect?to=/v1/models",
        "--location-trusted",
        "-H",
        f"Authorization: Bearer {held}",
    )
    assert status in (0, 403), body
    assert [one.host for one in there.asked if CANARY in one.everything()] == [MODEL]
    log = (agent.paths.logs(ID) / "egress.jsonl").read_text(encoding="utf-8")
    assert held not in log
    assert OTHER in log


def test_a_service_is_added_and_taken_away(agent: House, there: Provider) -> None:
    there.key = FOR_FILES
    added = agent.troupe("secret", "set", ID, "files", input=f"{FOR_FILES}\n")
    assert added.status == 0, added
    assert "restarted" in added.out
    wait_until(lambda: state(agent) == "running")
    held = stand_in(agent, "FILES_KEY")
    assert curl(agent, f"https://{FILES}/list?a=1&key={held}&b=2")[0] == 200
    assert any(one.target == f"/list?a=1&key={FOR_FILES}&b=2" for one in there.asked)
    listed = {one["service"]: one for one in json.loads(agent.troupe("secret", "list", ID, "--json").out)}
    assert listed["files"]["kept"]
    taken = agent.troupe("secret", "remove", ID, "files")
    assert taken.status == 0, taken
    assert "FILES_KEY" not in inside(agent, "cat", "/state/hermes/.env")
    assert not (agent.home / ".local/state/credentials" / ID / "files.key").exists()
    there.key = CANARY


def test_a_new_key_is_used_by_the_next_request(agent: House, there: Provider) -> None:
    gateway = json.loads(agent.troupe("status", ID, "--json").out)["gateway_pid"]
    there.key = SECOND
    wrong = agent.troupe("chat", ID, "hello")
    assert wrong.status == 5, wrong
    told = agent.troupe("secret", "check", ID)
    assert told.status == 4, told
    assert "the key itself is wrong" in told.out
    assert agent.troupe("secret", "set", ID, "model", input=f"{SECOND}\n").status == 0
    right = agent.troupe("chat", ID, "hello")
    assert right.status == 0, right
    assert agent.troupe("secret", "check", ID).status == 0
    assert json.loads(agent.troupe("status", ID, "--json").out)["gateway_pid"] == gateway
    assert not [path for path in everything(agent.home) if holds(path, CANARY)]
    there.key = CANARY
    assert agent.troupe("secret", "set", ID, "model", input=f"{CANARY}\n").status == 0


def test_check_tells_what_is_missing(agent: House) -> None:
    assert agent.troupe("secret", "remove", ID, "model").status == 0
    told = agent.troupe("secret", "check", ID)
    assert told.status == 4, told
    assert "there is no key" in told.out
    failed = agent.troupe("chat", ID, "hello")
    assert failed.status == 5, failed
    assert agent.troupe("secret", "set", ID, "model", input=f"{CANARY}\n").status == 0


def test_locked_leaves_the_model_alone(agent: House, there: Provider) -> None:
    assert agent.troupe("policy", ID, "locked").status == 0
    shown = agent.troupe("policy", ID)
    assert f"{MODEL}:443 (service model" in shown.out
    assert "pypi.org" not in shown.out
    assert agent.troupe("chat", ID, "hello").status == 0
    assert curl(agent, "https://pypi.org/simple/")[0] in (0, 403)
    assert agent.troupe("policy", ID, "balanced").status == 0


@pytest.mark.parametrize(
    "words",
    [
        ("secret", "set", ID, "nothing"),
        ("secret", "set", ID, "../model"),
        ("secret", "set", ID, "-rf"),
        ("secret", "remove", ID, "nothing"),
    ],
)
def test_a_service_that_the_kit_does_not_have_is_refused(agent: House, words: tuple[str, ...]) -> None:
    done = agent.troupe(*words, input=f"{CANARY}\n")
    assert done.status == 2, done
    assert CANARY not in done.out + done.err


@pytest.mark.parametrize("key", ["", " ", "a\x1b[2Jb", "k" * 5000, "a\tb"])
def test_a_key_that_is_none_is_refused_and_not_shown(agent: House, key: str) -> None:
    done = agent.troupe("secret", "set", ID, "model", input=f"{key}\n")
    assert done.status == 2, done
    assert not key.strip() or key not in done.out + done.err
    assert agent.troupe("secret", "check", ID).status == 0


def test_without_a_terminal_nothing_is_created(agent: House) -> None:
    done = agent.troupe("create", "probe", "--name", "Nobody There", "--force", input=f"{CANARY}\n")
    assert done.status == 3, done
    assert "nothing was done" in done.err
    assert agent.traces("nobody-there") == []


def test_no_means_no(agent: House) -> None:
    with Terminal(agent.argv("create", "probe", "--name", "Nobody There"), agent.env()) as terminal:
        terminal.wait_for("plain files", within_s=60)
        terminal.type("no\n")
        assert terminal.end(within_s=60) == 3
    assert agent.traces("nobody-there") == []


def test_debug_shows_no_key(agent: House, tmp_path: Path) -> None:
    key_file = agent.home / ".local/state/credentials" / ID / "model.key"
    key_file.chmod(0o644)
    try:
        done = agent.troupe("secret", "check", ID, "--debug")
        assert done.status == 4, done
        assert CANARY not in done.out + done.err
    finally:
        key_file.chmod(0o400)


@pytest.fixture
def kit(agent: House) -> Iterator[Path]:
    """Yield the folder of the agent's kit in the checkout, which is as it was afterwards."""
    with kits_kept(agent):
        yield agent.code / "kits" / "probe"


def new_version(kit: Path, version: str) -> None:
    """Give the kit a version that cannot do without a key for files."""
    text = (kit / "kit.toml").read_text(encoding="utf-8")
    (kit / "kit.toml").write_text(
        re.sub(r'(?m)^version = ".*"', f'version = "{version}"', text), encoding="utf-8"
    )
    services = json.loads((kit / "services.json").read_bytes())
    services["services"][1]["required"] = True
    (kit / "services.json").write_text(json.dumps(services), encoding="utf-8")


@pytest.mark.chaos
def test_an_upgrade_asks_for_a_key_that_it_requires_and_lets_go_of_it_on_its_way_back(
    agent: House, there: Provider, kit: Path
) -> None:
    assert agent.troupe("config", "set", "reserve", "1").status == 0
    held = stand_in(agent, "MODEL_API_KEY")
    was = records.load(agent.paths, ID)
    new_version(kit, "0.7.0")
    keyless = agent.troupe("upgrade", ID)
    assert keyless.status in (2, 3), keyless
    assert records.load(agent.paths, ID) == was
    there.key = SECOND  # so the message in the new sandbox is refused
    back = agent.troupe("upgrade", ID, input=f"{FOR_FILES}\n")
    assert back.status == 5, back
    assert records.load(agent.paths, ID) == was
    folder = agent.home / ".local/state/credentials" / ID
    assert not (folder / "files.key").exists()
    assert "FILES_KEY" not in inside(agent, "cat", "/state/hermes/.env")
    there.key = CANARY
    assert agent.troupe("chat", ID, "back?").status == 0
    done = agent.troupe("upgrade", ID, input=f"{FOR_FILES}\n")
    assert done.status == 0, done
    now = records.load(agent.paths, ID)
    assert (now.services, now.kit.version, now.move) == (("model", "files"), "0.7.0", 1)
    assert stand_in(agent, "MODEL_API_KEY") == held
    assert stand_in(agent, "FILES_KEY").startswith("files-")
    assert agent.troupe("chat", ID, "still yours?").status == 0
    # The backups of all these moves are among the files.
    assert [path for path in everything(agent.home) if holds(path, CANARY)] == [folder / "model.key"]


def test_a_real_hermes_thinks_with_a_key_that_it_does_not_have(house: House, there: Provider) -> None:
    words = ("provider=other", f"address=https://{MODEL}/v1", "model=rehearsal-1", "context-length=131072")
    given = tuple(word for one in words for word in ("--setting", one))
    name, one = "Miss Bolt", "miss-bolt"
    there.asked.clear()
    try:
        with Terminal(house.argv("create", "hermes", "--name", name, *given), house.env()) as terminal:
            for question, answer in (("plain files", "yes"), ("virtual machine", "yes"),
                                     ("model key (hidden)", CANARY), ("github key", "")):  # fmt: skip
                terminal.wait_for(question, within_s=60)
                terminal.type(f"{answer}\n")
            assert terminal.end(within_s=200) == 0, terminal.shown.decode(errors="replace")
        assert b"Rehearsal reply to" in terminal.shown
        assert there.saw(f"Bearer {CANARY}")
        done = house.troupe("chat", one, "good morning")
        assert "Rehearsal reply to: good morning" in done.out, done
    finally:
        house.delete(name)


def test_the_key_was_in_no_process_list_meanwhile(agent: House, watch: Watch) -> None:
    assert watch.rounds > 100
    assert watch.found == set()


def test_delete_destroys_the_keys_and_says_what_to_revoke(house: House, there: Provider) -> None:
    create(house, "Miss Gone", key=CANARY)
    done = house.troupe("delete", "miss-gone", "--yes-i-mean", "Miss Gone")
    assert done.status == 0, done
    assert "Revoke its key for model" in done.out
    assert not (house.home / ".local/state/credentials/miss-gone").exists()
    assert house.traces("miss-gone") == []
