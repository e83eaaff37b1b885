"""Settings: checked when written and when read, and every comment stays."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from troupe_tasks import config, process
from troupe_tasks.errors import StateUnreadable, ToolFailed, ToolMissing, UsageError
from troupe_tasks.paths import Paths

FILE = """# the machine in the cellar
timezone = "Europe/Berlin"  # where it stands

# ours
registry   =   'registry.example.com/kits'
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = Paths.from_env({"HOME": str(tmp_path)})
    found.config.mkdir(parents=True)
    return found


def test_no_file_is_no_settings(paths: Paths) -> None:
    assert config.read(paths) == {}
    assert not config.unset(paths, "timezone")
    assert not paths.config_file.exists()


def test_comments_and_spaces_survive_setting_and_unsetting(paths: Paths) -> None:
    paths.config_file.write_text(FILE, encoding="utf-8")
    config.put(paths, "reserve", "20")
    assert paths.config_file.read_text(encoding="utf-8") == FILE + 'reserve = "20"\n'
    config.put(paths, "timezone", "Asia/Tokyo")
    assert config.unset(paths, "reserve")
    assert paths.config_file.read_text(encoding="utf-8") == FILE.replace("Europe/Berlin", "Asia/Tokyo")
    assert config.read(paths) == {"timezone": "Asia/Tokyo", "registry": "registry.example.com/kits"}
    assert config.unset(paths, "timezone")
    left = paths.config_file.read_text(encoding="utf-8")
    assert "# the machine in the cellar" in left
    assert "# ours" in left


def test_the_file_is_private_and_whole(paths: Paths) -> None:
    config.put(paths, "driver", "capsule")
    assert paths.config_file.stat().st_mode & 0o777 == 0o600
    assert paths.config.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("key", ["tmiezone", "", "time zone", "timezone.x", "x" * 1000])
def test_an_unknown_key_is_refused_with_the_known_ones(paths: Paths, key: str) -> None:
    for call in (lambda: config.put(paths, key, "x"), lambda: config.unset(paths, key)):
        with pytest.raises(UsageError, match="there is no setting") as caught:
            call()
        assert "timezone" in caught.value.hint
    assert not paths.config_file.exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timezone", "Berlin"),
        ("timezone", "../../etc/passwd"),
        ("timezone", ""),
        ("registry", "https://example.com"),
        ("registry", "example.com/kits\n"),
        ("registry", "-x"),
        ("registry", "example.com/" + "x" * 300),
        ("registry", "example.com/../x"),
        ("registry", "example.com:٣/x"),
        ("slack-boundary-public", "G0123456789"),
        ("slack-boundary-private", "c0123456789"),
        ("reserve", "-1"),
        ("reserve", "0"),
        ("reserve", "nan"),
        ("reserve", "20TB"),
        ("reserve", "max"),
        ("driver", "docker"),
        ("collector-timer", ""),
        ("collector-timer", "hour\x1bly"),
    ],
)
def test_bad_values_are_refused_and_nothing_is_written(paths: Paths, key: str, value: str) -> None:
    paths.config_file.write_text(FILE, encoding="utf-8")
    with pytest.raises(UsageError):
        config.put(paths, key, value)
    assert paths.config_file.read_text(encoding="utf-8") == FILE


def test_a_bad_value_in_the_file_is_told(paths: Paths) -> None:
    paths.config_file.write_text('timezone = "Atlantis"\n', encoding="utf-8")
    with pytest.raises(StateUnreadable) as refused:
        config.read(paths)
    assert str(paths.config_file) in refused.value.what
    assert "Atlantis" in refused.value.cause
    config.put(paths, "timezone", "UTC")
    assert config.read(paths) == {"timezone": "UTC"}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("foo", 'foo = "x"\n'),
        ("time zone", '"time zone" = "x"\n'),
        ("foo", "[foo]\nx = 1\n"),
        ("timezone", "[timezone]\nx = 1\n"),
        ("reserve", 'reserve = "lots"\n'),
        ("reserve", 'reserve = "max"\n'),
        ("reserve", "reserve = 5\n"),
        ("driver", 'driver = "docker"\n'),
    ],
)
def test_a_wrong_line_is_told_with_its_file_and_can_be_taken_out(paths: Paths, key: str, text: str) -> None:
    paths.config_file.write_text(text, encoding="utf-8")
    with pytest.raises(StateUnreadable) as refused:
        config.read(paths)
    assert str(paths.config_file) in refused.value.what
    assert key in refused.value.cause
    *_, unset = shlex.split(refused.value.hint.split("`")[-2])
    assert unset == key
    assert config.unset(paths, unset)
    assert config.read(paths) == {}


def test_a_size_that_is_kept_can_not_be_all_there_is_and_is_not_said_to_be(paths: Paths) -> None:
    for text in ("max", "lots"):
        with pytest.raises(UsageError) as refused:
            config.put(paths, "reserve", text)
        assert "max" not in refused.value.hint
        assert "GiB" in refused.value.hint


@pytest.mark.parametrize(
    "damage",
    [b"timezone = ", b'a = "1"\na = "2"\n', b"\xff\xfe", b"[[[", b"timezone = 5\n", b'[timezone]\nx = "y"\n'],
)
def test_a_damaged_file_is_told_and_left_alone(paths: Paths, damage: bytes) -> None:
    paths.config_file.write_bytes(damage)
    with pytest.raises(StateUnreadable, match=r"config\.toml"):
        config.read(paths)
    assert paths.config_file.read_bytes() == damage


def test_a_link_is_not_read(paths: Paths, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(FILE, encoding="utf-8")
    paths.config_file.symlink_to(tmp_path / "other")
    with pytest.raises(StateUnreadable):
        config.read(paths)


def test_systemd_judges_calendar_expressions(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def refusing(argv: list[str], **_more: object) -> None:
        asked.append(argv)
        raise ToolFailed("systemd-analyze ended with status 1")

    monkeypatch.setattr(process, "run", refusing)
    with pytest.raises(UsageError, match="collector-timer"):
        config.put(paths, "collector-timer", "--now")
    assert asked == [["systemd-analyze", "calendar", "--", "--now"]]

    def missing(_argv: list[str], **_more: object) -> None:
        raise ToolMissing("the program systemd-analyze is not installed")

    monkeypatch.setattr(process, "run", missing)
    config.put(paths, "collector-timer", "hourly")
    assert config.read(paths) == {"collector-timer": "hourly"}


def test_every_setting_says_what_it_means() -> None:
    assert all(entry.key == key and entry.meaning for key, entry in config.SETTINGS.items())
