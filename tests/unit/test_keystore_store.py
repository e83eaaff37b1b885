"""A key folder: what is kept, what is refused, and that a key is never lost or weakened."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit import creds
from troupe_tasks.errors import (
    DiskFull,
    FolderUnusable,
    KeyFailed,
    KeyMissing,
    KeyRefused,
    TroupeError,
    UsageError,
)
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.keystore.tiers import Tier
from troupe_tasks.paths import Paths
from troupe_tasks.secret import Secret

OLD, NEW = "sk-old-key-0123456789", "sk-new-key-9876543210"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> creds.Machine:
    """Give a machine with a TPM."""
    return creds.stand_in(tmp_path / "bin", monkeypatch)


@pytest.fixture
def folder(own_home: Path) -> Path:
    """Give the place of jane's keys."""
    return own_home / ".local/state/credentials/jane"


@pytest.fixture(params=list(Tier))
def store(request: pytest.FixtureRequest, machine: creds.Machine) -> Keystore:
    """Give a store of each tier."""
    return made(request.param, machine)


def made(tier: Tier, machine: creds.Machine | None = None) -> Keystore:
    if machine and tier is Tier.HOST_KEY:
        machine.becomes(tpm="")
    store = Keystore(Paths.from_env(), "jane")
    store.create(tier)
    return store


def key(text: str) -> Secret:
    return Secret.typed(text)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@contextmanager
def umask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


def test_keys_live_in_the_home_whatever_xdg_says(own_home: Path, folder: Path) -> None:
    env = {"HOME": str(own_home), "XDG_STATE_HOME": "/elsewhere"}
    assert Paths.from_env(env).keys("jane") == folder
    assert Paths(Path("/d"), Path("/c"), Path("/s")).keys("jane") == folder


def test_a_key_is_kept_replaced_listed_and_removed(store: Keystore, folder: Path) -> None:
    assert store.services() == ()
    with pytest.raises(KeyMissing, match="jane has no key for openrouter"):
        store.read("openrouter")
    store.put("openrouter", key(OLD))
    store.put("exa", key("é" * 2048))
    store.put("openrouter", key(NEW))
    assert store.read("openrouter").reveal() == NEW.encode()
    assert store.read("exa").reveal() == ("é" * 2048).encode()
    assert store.services() == ("exa", "openrouter")
    assert [(one.service, one.ok) for one in store.check()] == [("exa", True), ("openrouter", True)]
    suffix = store.tier.suffix
    assert sorted(entry.name for entry in folder.iterdir()) == [f"exa{suffix}", f"openrouter{suffix}", "tier"]
    store.remove("exa")
    assert store.services() == ("openrouter",)
    with pytest.raises(KeyMissing):
        store.remove("exa")
    store.destroy()
    store.destroy()
    assert not folder.exists()
    assert store.services() == ()
    assert store.check() == ()


@pytest.mark.parametrize("bits", [0, 0o022, 0o777])
@pytest.mark.parametrize("tier", list(Tier))
def test_modes_do_not_depend_on_the_umask(
    machine: creds.Machine, folder: Path, tier: Tier, bits: int
) -> None:
    with umask(bits):
        store = made(tier)
        store.put("openrouter", key(OLD))
        store.put("openrouter", key(NEW))
    assert mode(folder) == mode(folder.parent) == 0o700
    assert mode(folder / "tier") == 0o600
    assert {mode(path) for path in folder.glob("openrouter*")} == {tier.mode}


def test_a_file_is_private_before_it_has_content(store: Keystore, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    real = os.write

    def watching(handle: int, data: bytes) -> int:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            seen.add(stat.S_IMODE(os.fstat(handle).st_mode))
        return real(handle, data)

    with umask(0), monkeypatch.context() as patch:
        patch.setattr(os, "write", watching)
        store.put("openrouter", key(OLD))
    assert seen == {store.tier.mode}


def test_a_tier_is_for_life(store: Keystore) -> None:
    mine = store.tier
    store.create(mine)
    for other in set(Tier) - {mine}:
        with pytest.raises(KeyRefused, match="for life"):
            store.create(other)
    assert store.tier is mine


def test_no_tier_file_means_tpm(store: Keystore, folder: Path) -> None:
    store.put("openrouter", key(OLD))
    (folder / "tier").unlink()
    assert store.tier is Tier.TPM
    with pytest.raises(KeyRefused, match="for life"):
        store.create(Tier.FILE)


def test_a_folder_without_a_key_or_a_tier_may_be_given_one(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    assert made(Tier.FILE).tier is Tier.FILE


@pytest.mark.parametrize(
    "text", [b"", b"tpm", b"TPM\n", b"tpm\n\n", b"none\n", b"\x1b[31m\n", b"file\n" * 100]
)
def test_an_unknown_tier_is_refused(folder: Path, text: bytes) -> None:
    store = made(Tier.FILE)
    store.put("openrouter", key(OLD))
    (folder / "tier").write_bytes(text)
    for call in (
        store.services,
        store.check,
        lambda: store.read("openrouter"),
        lambda: store.put("x", key(OLD)),
    ):
        with pytest.raises(KeyRefused) as caught:
            call()
        assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("planted", "tier"), [(".key", Tier.TPM), (".key", Tier.HOST_KEY), (".cred", Tier.FILE)]
)
def test_another_form_never_stands_in_for_a_key(
    machine: creds.Machine, folder: Path, planted: str, tier: Tier
) -> None:
    store = made(tier, machine)
    file = folder / f"openrouter{planted}"
    file.write_text(OLD)
    file.chmod(0o400 if planted == ".key" else 0o600)
    with pytest.raises(KeyRefused, match=r"is not of the form .* never stands in"):
        store.read("openrouter")
    assert store.services() == ()
    assert [one.ok for one in store.check()] == [False]
    store.put("openrouter", key(NEW))
    assert store.read("openrouter").reveal() == NEW.encode()
    assert {one.ok for one in store.check()} == {True, False}
    store.remove("openrouter")
    assert not file.exists()


def test_the_host_keys_seal_is_refused_where_the_tpms_is_due(machine: creds.Machine, folder: Path) -> None:
    weak = made(Tier.HOST_KEY, machine)
    weak.put("openrouter", key(OLD))
    (folder / "tier").write_bytes(b"tpm\n")
    with pytest.raises(KeyRefused, match="sealed with the host key alone"):
        Keystore(Paths.from_env(), "jane").read("openrouter")


def test_the_tpms_seal_is_taken_where_the_host_keys_is_due(machine: creds.Machine) -> None:
    store = made(Tier.HOST_KEY, machine)
    machine.becomes()  # it got a TPM, and systemd's service chooses for itself
    store.put("openrouter", key(OLD))
    assert store.read("openrouter").reveal() == OLD.encode()


def plant_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to(file.with_name("elsewhere"))


def plant_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


def give_away(file: Path) -> None:
    os.chown(file, 65534, 65534)


GIVEN_AWAY = pytest.param(
    give_away, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
)
OPENED = [lambda file: file.chmod(0o740), lambda file: file.chmod(0o704), GIVEN_AWAY]


@pytest.mark.parametrize("spoil", [plant_link, plant_fifo, lambda file: file.chmod(0o700), *OPENED])
@pytest.mark.parametrize("name", ["key", "tier"])
def test_a_file_that_is_not_as_it_was_made_is_refused(
    store: Keystore, folder: Path, spoil: Callable[[Path], None], name: str
) -> None:
    store.put("openrouter", key(OLD))
    spoil(folder / ("tier" if name == "tier" else f"openrouter{store.tier.suffix}"))
    with pytest.raises(KeyRefused):
        store.read("openrouter")
    if name == "tier":
        with pytest.raises(KeyRefused):
            store.check()
    else:
        assert not next(one for one in store.check() if one.service == "openrouter").ok


@pytest.mark.parametrize("spoil", [plant_link, *OPENED])
@pytest.mark.parametrize("which", ["credentials", "jane"])
def test_a_folder_that_others_reach_is_refused(
    store: Keystore, folder: Path, spoil: Callable[[Path], None], which: str
) -> None:
    store.put("openrouter", key(OLD))
    place = folder if which == "jane" else folder.parent
    spoil(place)
    calls: list[Callable[[], object]] = [
        lambda: store.read("openrouter"), lambda: store.put("openrouter", key(NEW)), store.services, store.check,
        lambda: store.remove("openrouter"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(KeyRefused, match="not a folder that keys can be in"):
            call()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.one_of(
        st.text(max_size=70), st.from_regex(r"\A[a-z0-9-]{0,70}\Z"), st.sampled_from(["..", "a/b", "a\n"])
    )
)
def test_a_service_has_a_plain_name(folder: Path, name: str) -> None:
    store = made(Tier.FILE)
    plain = name.replace("-", "a").isalnum() and name.isascii() and name.lower() == name and name[0] != "-"
    if plain and len(name) <= 63:
        store.put(name, key(OLD))
        assert store.services() == (name,)
        store.remove(name)
    else:
        for call in (lambda: store.put(name, key(OLD)), lambda: store.read(name), lambda: store.remove(name)):
            with pytest.raises(UsageError):
                call()
    assert [entry.name for entry in folder.iterdir()] == ["tier"]


def test_an_agent_has_a_plain_id() -> None:
    for agent_id in ("", "..", "a/b", "Mr. Doyle", "-a"):
        with pytest.raises(UsageError):
            Keystore(Paths.from_env(), agent_id)


def test_what_is_no_key_is_not_stored(store: Keystore, folder: Path) -> None:
    store.put("openrouter", key(OLD))
    for data in (b"", b"a\n", b"a\x00", b"x" * 4097, b"\xff"):
        with pytest.raises(UsageError):
            store.put("openrouter", Secret(data))
    assert store.read("openrouter").reveal() == OLD.encode()


@pytest.mark.parametrize("text", ["A", "0", "="])
def test_the_shortest_key_is_sealed_whole(store: Keystore, text: str) -> None:
    store.put("openrouter", key(text))
    assert store.read("openrouter").reveal() == text.encode()


def test_an_agent_without_a_folder_gets_no_key(folder: Path) -> None:
    with pytest.raises(KeyRefused, match="has no folder for keys"):
        Keystore(Paths.from_env(), "jane").put("openrouter", key(OLD))
    assert not folder.exists()


@pytest.mark.parametrize("data", [b"", b"a key\n", b"a\nb", b"\xff\xfe", b"x" * 4097])
def test_a_plain_file_that_holds_no_key_is_refused(folder: Path, data: bytes) -> None:
    store = made(Tier.FILE)
    (folder / "openrouter.key").write_bytes(data)
    (folder / "openrouter.key").chmod(0o400)
    with pytest.raises(KeyRefused):
        store.read("openrouter")


def test_strangers_and_leftovers_in_the_folder_are_told_and_a_key_set_again_ends_them(
    store: Keystore, folder: Path
) -> None:
    store.put("openrouter", key(OLD))
    left = folder / f".openrouter{store.tier.suffix}.4711.new"
    other = folder / f".exa{store.tier.suffix}.4711.new"
    for path in (left, other, folder / "README"):
        path.write_text(OLD)
    assert {one.service: one.ok for one in store.check() if not one.ok} == {
        "openrouter": False, "exa": False, "README": False,
    }  # fmt: skip
    assert store.services() == ("openrouter",)
    store.put("openrouter", key(NEW))
    assert not left.exists()
    assert other.exists()


def test_what_is_to_be_revoked_is_named_whatever_became_of_the_folder(store: Keystore, folder: Path) -> None:
    assert store.named() == store.services() == ()
    store.put("desk", Secret.typed(OLD))
    for name in ("desk.key", "loft.cred", "Not A Name.key", ".attic.key.7.new", "tier"):
        (folder / name).write_bytes(b"?")
    folder.chmod(0o755)
    assert store.named() == ("desk", "loft")
    folder.rename(folder.with_name("elsewhere"))
    assert store.named() == ()
    folder.symlink_to(folder.with_name("elsewhere"))
    assert store.named() == ()


def test_a_plain_key_is_overwritten_before_it_is_removed(folder: Path) -> None:
    store = made(Tier.FILE)
    ends: list[Callable[[], None]] = [lambda: store.remove("openrouter"), store.destroy]
    for end in ends:
        store.put("openrouter", key(OLD))
        with open(folder / "openrouter.key", "rb") as still_open:
            end()
            assert still_open.read() == bytes(len(OLD))
    assert not folder.exists()


def test_destroying_follows_no_link(own_home: Path, folder: Path) -> None:
    store = made(Tier.FILE)
    victim = own_home / "victim"
    victim.write_text(OLD)
    (folder / "openrouter.key").symlink_to(victim)
    (folder / ".a.key.1.new").symlink_to(victim)
    store.destroy()
    assert victim.read_text() == OLD
    assert not folder.exists()
    (own_home / "other").mkdir()
    (own_home / "other" / "a.key").write_text(OLD)
    folder.symlink_to(own_home / "other")
    store.destroy()
    assert (own_home / "other" / "a.key").read_text() == OLD
    assert not folder.is_symlink()


class Failing:
    """Lets N-1 calls of a system function on files through and fails the Nth."""

    def __init__(self, real: Callable[..., Any], nth: int) -> None:
        self.real, self.left = real, nth

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.real(*args, **kwargs)


@pytest.mark.parametrize("function", ["fsync", "fchmod", "replace"])
def test_a_full_disk_leaves_the_old_key(
    store: Keystore, folder: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    store.put("openrouter", key(OLD))
    for nth in range(1, 20):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, Failing(getattr(os, function), nth))
            told = raised(lambda: store.put("openrouter", key(NEW)))
        if told is None:
            break
        assert type(told) is DiskFull
        assert store.read("openrouter").reveal() in (OLD.encode(), NEW.encode())
        assert {one.ok for one in store.check()} == {True}
    assert 1 < nth < 19
    assert store.read("openrouter").reveal() == NEW.encode()


def raised(call: Callable[[], object]) -> TroupeError | None:
    try:
        call()
    except TroupeError as error:
        return error
    return None


def test_a_key_that_does_not_open_again_does_not_replace_the_old_one(machine: creds.Machine) -> None:
    store = made(Tier.TPM)
    store.put("openrouter", key(OLD))
    machine.becomes(opens_to="something else")
    with pytest.raises(KeyFailed, match="did not open to what was sealed"):
        store.put("openrouter", key(NEW))
    machine.becomes(opens_to="")
    with pytest.raises(KeyRefused, match="holds no key"):
        store.put("openrouter", key(NEW))
    machine.becomes()
    assert store.read("openrouter").reveal() == OLD.encode()


def test_threads_read_while_a_key_is_replaced(store: Keystore) -> None:
    store.put("openrouter", key(OLD))
    found: list[bytes] = []
    problems: list[Exception] = []

    def reading() -> None:
        try:
            found.extend(store.read("openrouter").reveal() for _ in range(4))
        except Exception as error:  # noqa: BLE001 - whatever it is fails the test
            problems.append(error)

    readers = [threading.Thread(target=reading) for _ in range(4)]
    for reader in readers:
        reader.start()
    for text in (NEW, OLD, NEW):
        store.put("openrouter", key(text))
    for reader in readers:
        reader.join(60)
    assert problems == []
    assert set(found) <= {OLD.encode(), NEW.encode()}
    assert len(found) == 16


def test_an_unusable_home_is_told(own_home: Path) -> None:
    (own_home / ".local").write_text("a file")
    with pytest.raises((FolderUnusable, KeyRefused)):
        made(Tier.FILE)
