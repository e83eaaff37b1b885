"""An agent with keys, created by a person on a terminal for a provider of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.house import House
from tests.integration.provider import Provider, provider
from tests.integration.terminal import Terminal

NAME, ID = "Miss Lock", "miss-lock"
needs_port = pytest.mark.skipif(os.geteuid() != 0, reason="a provider on port 443 of this machine needs root")


@contextmanager
def keyed(house: House, *, key: str) -> Iterator[Provider]:
    """Yield the provider, with one agent that has a key for it."""
    house.rooms.services.stop(("broker",))  # the next command starts it, in the provider's network
    with provider(house.code, house.home, key=key) as found:
        shown = create(house, NAME, key=key)
        assert "Rehearsal reply to" in shown, shown
        assert key not in shown
        try:
            yield found
        finally:
            house.delete(NAME)
            house.rooms.services.stop(("broker",))


def create(house: House, name: str, *, key: str, kit: str = "probe", words: tuple[str, ...] = ()) -> str:
    """Create an agent as a person does, answering every question, and return what the terminal showed."""
    with Terminal(house.argv("create", kit, "--name", name, *words), house.env()) as terminal:
        seen = terminal.wait_for("plain files", within_s=60)
        terminal.type("yes\n")
        seen = terminal.wait_for("virtual machine", within_s=20, after=seen)
        terminal.type("yes\n")
        for setting in ("provider", "address", "model", "context-length"):
            if not any(word.startswith(f"{setting}=") for word in words):
                seen = terminal.wait_for(f"{setting} [", within_s=60, after=seen)
                terminal.type("\n")
        seen = terminal.wait_for("model key (hidden)", within_s=60, after=seen)
        terminal.type(f"{key}\n")
        seen = terminal.wait_for("Enter skips it", within_s=20, after=seen)
        terminal.type("\n")
        assert terminal.end(within_s=170) == 0, terminal.shown.decode(errors="replace")
        return terminal.shown.decode(errors="replace")
