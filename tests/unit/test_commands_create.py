"""`troupe create` looks at the machine before it asks anybody for a kit, or a person for the registry's token."""

from __future__ import annotations

import io
from typing import Any, NoReturn

import pytest
from invoke import Context

from tests.registries import Reply, lying
from troupe_tasks import config
from troupe_tasks.errors import NotReady, UsageError
from troupe_tasks.host import packages
from troupe_tasks.namespace import namespace
from troupe_tasks.operations import readiness
from troupe_tasks.paths import Paths


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have a machine that lacks something, and tell what of it was looked at."""
    found: list[str] = []

    def refuse(_house: object) -> NoReturn:
        found.append("doctor")
        raise NotReady("this machine is not ready")

    monkeypatch.setattr(packages, "ensure", lambda **_: found.append("packages"))
    monkeypatch.setattr(readiness, "bring_programs", lambda *_: found.append("programs"))
    monkeypatch.setattr(readiness, "refuse_unready", refuse)
    return found


def create(**flags: Any) -> None:
    namespace["create"].body.__wrapped__(Context(), kind="mime", rehearsal=True, **{"name": "Jane", **flags})


def test_a_machine_that_is_not_ready_is_told_before_the_registry_is_asked(
    looked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = io.StringIO("the token\n")
    monkeypatch.setattr("sys.stdin", typed)
    closed = Reply(401, {"WWW-Authenticate": 'Basic realm="kits"'})
    with lying(lambda *_: closed) as seen:
        config.put(Paths.from_env(), "registry", f"{seen.place}/kits")
        with pytest.raises(NotReady):
            create()
    assert looked == ["packages", "programs", "doctor"]
    assert seen.asked == []
    assert typed.read() == "the token\n"


@pytest.mark.parametrize(
    "flags", [{"name": ""}, {"cpu": "0"}, {"memory": "x"}, {"storage": "-1"}, {"soul": "/nowhere"}, {"policy": "x"}]
)  # fmt: skip
def test_words_that_no_kit_can_make_right_are_told_before_the_machine_is_looked_at(
    looked: list[str], flags: dict[str, str]
) -> None:
    with pytest.raises(UsageError):
        create(**flags)
    assert looked == []
