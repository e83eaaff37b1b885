"""What a kit lets a person set when an agent is created: each setting's form, its default, when it is asked.

A setting is always given as text, checked against its form before anything is done with it, and shown as typed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from troupe_tasks.egress import target
from troupe_tasks.egress.policy import host_name
from troupe_tasks.errors import UsageError
from troupe_tasks.text import line

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
Line = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f\x7f]+$")]
Value = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)*/?")


class When(BaseModel):
    """A condition: another setting, asked before, has this value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    setting: Name
    value: Value

    def holds(self, settings: Mapping[str, str]) -> bool:
        """Tell whether the settings so far fulfil it."""
        return settings.get(self.setting) == self.value


class Setting(BaseModel):
    """One thing to set; default_for gives the default by the value of an earlier setting, default for all others.

    Without a default it has to be given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Name
    ask: Line
    form: Literal["choice", "word", "number", "https-address"]
    choices: tuple[Value, ...] = Field(default=(), max_length=20, strict=False)
    minimum: int = 0
    maximum: int = 1 << 31
    default: Value | None = None
    default_for: Mapping[str, Value] = Field(default_factory=dict, max_length=20)
    default_by: Name | None = None
    when: When | None = None

    @model_validator(mode="after")
    def _whole(self) -> Setting:
        if (self.form == "choice") != bool(self.choices):
            raise ValueError("choices belong to the form choice, and to no other")
        if bool(self.default_for) != (self.default_by is not None):
            raise ValueError("default_for and default_by belong together")
        for text in (*self.default_for.values(), *([self.default] if self.default is not None else [])):
            self.checked(text)
        return self

    def default_among(self, settings: Mapping[str, str]) -> str | None:
        """Return the default that goes with the settings before it; None when it has to be given."""
        by = settings.get(self.default_by, "") if self.default_by else ""
        return self.default_for.get(by, self.default)

    def checked(self, text: str) -> str:
        """Return text when it has the setting's form; raises ValueError with what the form is."""
        if len(text) > 200:
            raise ValueError("it has at most 200 characters")
        return _FORMS[self.form](self, text)


def _choice(setting: Setting, text: str) -> str:
    if text not in setting.choices:
        raise ValueError(f"it is one of: {', '.join(setting.choices)}")
    return text


def _word(_setting: Setting, text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError("it is one word of ASCII letters, digits and . _ : / @ + -")
    return text


def _number(setting: Setting, text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,10}", text) or not setting.minimum <= int(text) <= setting.maximum:
        raise ValueError(f"it is a whole number from {setting.minimum} to {setting.maximum}")
    return str(int(text))


def _address(_setting: Setting, text: str) -> str:
    address_host(text)
    return text.rstrip("/")


_FORMS: Mapping[str, Callable[[Setting, str], str]] = {
    "choice": _choice, "word": _word, "number": _number, "https-address": _address,
}  # fmt: skip


def address_host(text: str) -> str:
    """Return the host of an https address like https://models.example.org/v1; raises ValueError."""
    rest = text.removeprefix("https://")
    place, slash, path = rest.partition("/")
    try:
        found = target.authority(place, default_port=443)
    except ValueError as error:
        raise ValueError("it is an address like https://models.example.org/v1") from error
    if rest == text or found.is_address or found.port != 443 or not _PATH.fullmatch(slash + path):
        raise ValueError(
            "it is an address like https://models.example.org/v1: https, a name, port 443, a plain path"
        )
    return host_name(found.host)


def applicable(setting: Setting, settings: Mapping[str, str]) -> bool:
    """Tell whether a setting means anything beside the settings before it."""
    return setting.when is None or setting.when.holds(settings)


def settle(declared: Sequence[Setting], given: Mapping[str, str]) -> dict[str, str]:
    """Return every setting that applies with its value, given or default; raises UsageError for what is off."""
    unknown = sorted(set(given) - {setting.name for setting in declared})
    if unknown:
        known = ", ".join(setting.name for setting in declared) or "none"
        raise UsageError(
            f"the kit has no setting {line(unknown[0], 60)!r}", hint=f"Its settings are: {known}."
        )
    settled: dict[str, str] = {}
    for setting in declared:
        text = given.get(setting.name)
        if not applicable(setting, settled):
            if text is not None:
                raise UsageError(f"the setting {setting.name} means nothing here", cause=_only(setting))
            continue
        text = text if text is not None else setting.default_among(settled)
        if text is None:
            raise UsageError(
                f"the setting {setting.name} has to be given", cause=setting.ask,
                hint=f"Pass --setting {setting.name}=VALUE.",
            )  # fmt: skip
        settled[setting.name] = value(setting, text)
    return settled


def value(setting: Setting, text: str) -> str:
    """Return a setting's value, checked; raises UsageError."""
    try:
        return setting.checked(text)
    except ValueError as error:
        raise UsageError(
            f"the setting {setting.name} can't be {line(text, 60)!r}", cause=str(error), hint=setting.ask
        ) from error


def _only(setting: Setting) -> str:
    return f"it is for {setting.when.setting}={setting.when.value} only" if setting.when else ""
