"""Machine settings: config.toml, one table of keys, comments kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from troupe_tasks import durable
from troupe_tasks.errors import StateUnreadable, UsageError
from troupe_tasks.paths import Paths
from troupe_tasks.text import line

DRIVERS = ("sbx", "capsule")
RESERVE_GIB = 50


def _timezone(text: str) -> str:
    import zoneinfo

    if text not in zoneinfo.available_timezones():
        raise ValueError("it is no IANA time zone; Europe/Berlin is one")
    return text


def _calendar(text: str) -> str:
    from troupe_tasks import process
    from troupe_tasks.errors import ToolFailed, ToolMissing

    if not text.strip() or len(text) > 200 or not text.isprintable():
        raise ValueError("it is no systemd calendar expression; hourly or *:0/15 is one")
    try:
        process.run(["systemd-analyze", "calendar", "--", text], deadline_s=5)
    except ToolMissing:
        return text  # nothing here can check it, or will run it
    except ToolFailed as error:
        raise ValueError("systemd-analyze says it is no calendar expression") from error
    return text


def _matching(pattern: str, example: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"it does not have the right form; {example} does")
        return text

    return check


def _reserve(text: str) -> str:
    from troupe_tasks.sizes import parse_mib

    parse_mib(text, flag="reserve", takes_max=False)  # it is kept, so all there is can't be
    return text


def _driver(text: str) -> str:
    if text not in DRIVERS:
        raise ValueError(f"the drivers are: {', '.join(DRIVERS)}")
    return text


@dataclass(frozen=True)
class Setting:
    """One key: its meaning, what it accepts (check raises ValueError with the reason), what holds while it is unset."""

    key: str
    meaning: str
    check: Callable[[str], str]
    usual: str = ""


SETTINGS = {
    setting.key: setting
    for setting in (
        Setting("timezone", "the agents' time zone (IANA name)", _timezone),
        Setting("collector-timer", "when the guard runs (systemd calendar expression)", _calendar),
        Setting("registry", "where kits are pulled from (HOST[:PORT]/PATH)",
                _matching(r"(?=.{1,255}$)[a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9][a-z0-9._-]*)*",
                          "registry.example.com/kits")),
        Setting("slack-boundary-public", "a public channel the agent must not reach (channel ID)",
                _matching(r"C[A-Z0-9]{6,20}", "C0123456789")),
        Setting("slack-boundary-private", "a private channel the agent must not reach (channel ID)",
                _matching(r"[CG][A-Z0-9]{6,20}", "G0123456789")),
        Setting("reserve", "free disk kept during a move (GiB)", _reserve, usual=str(RESERVE_GIB)),
        Setting("driver", "how sandboxes are made; a standing yes to that driver", _driver),
    )
}  # fmt: skip


def setting(key: str) -> Setting:
    """Return a key's setting; an unknown key is refused with the known ones."""
    if key not in SETTINGS:
        raise UsageError(
            f"there is no setting {key[:60]!r}", hint=f"The settings are: {', '.join(SETTINGS)}."
        )
    return SETTINGS[key]


def read(paths: Paths) -> dict[str, str]:
    """Return the settings that are set; an unknown key or bad value in the file is refused, naming both."""
    values: dict[str, str] = {}
    for key, value in _document(paths).items():
        if key not in SETTINGS:
            raise _mistaken(paths, key, f"there is no setting {line(key, 60)!r}")
        if not isinstance(value, str):
            raise _mistaken(paths, key, f"{key} is not text", f'Write it as {key} = "…", or take it out: ')
        try:
            values[key] = _checked(SETTINGS[key], value)
        except UsageError as error:
            raise _mistaken(paths, key, str(error)) from error
    return values


def _mistaken(
    paths: Paths, key: str, why: str, hint: str = "Mend that line, or take it out: "
) -> StateUnreadable:
    from shlex import quote

    return StateUnreadable(
        f"a line of {paths.config_file} is no setting", cause=why,
        hint=f"{hint}`troupe config unset {quote(key)}`.",
    )  # fmt: skip


def put(paths: Paths, key: str, value: str) -> None:
    """Set a key; every other line and comment of the file stays."""
    document = _document(paths)
    document[key] = _checked(setting(key), value)
    _write(paths, document)


def unset(paths: Paths, key: str) -> bool:
    """Remove a key and tell whether it was set. What is in the file goes, even if it is no setting."""
    document = _document(paths)
    if key not in document:
        setting(key)
        return False
    del document[key]
    _write(paths, document)
    return True


def checked(key: str, value: str) -> str:
    """Return a value that a setting takes; raises UsageError."""
    return _checked(setting(key), value)


def _checked(entry: Setting, value: str) -> str:
    try:
        return entry.check(value)
    except ValueError as error:
        raise UsageError(f"{value[:80]!r} is no value for {entry.key}", cause=str(error)) from error


def _document(paths: Paths) -> Any:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(durable.read_private(paths.config_file).decode())
    except FileNotFoundError:
        return tomlkit.document()
    except (TOMLKitError, UnicodeDecodeError) as error:
        hint = "Mend the file by hand, or remove it to start with none set."
        raise StateUnreadable(f"{paths.config_file} is not TOML", cause=str(error), hint=hint) from error


def _write(paths: Paths, document: Any) -> None:
    import tomlkit

    durable.make_private_dir(paths.config)
    durable.write(paths.config_file, tomlkit.dumps(document).encode())
