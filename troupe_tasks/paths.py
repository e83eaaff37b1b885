"""Name every folder that troupe keeps things in (the table is in docs/when-something-fails.md).

Relative XDG values are ignored, as the XDG Base Directory Specification says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


def _home(env: Mapping[str, str]) -> Path:
    home = env.get("HOME", "")
    return Path(home) if home.startswith("/") else Path.home()


def _base(env: Mapping[str, str], variable: str, fallback: str) -> Path:
    value = env.get(variable, "")
    return Path(value) if value.startswith("/") else _home(env) / fallback


def _credentials(env: Mapping[str, str] = os.environ) -> Path:
    # Of the home alone: what reads keys for a person knows no XDG variable of theirs.
    return _home(env) / ".local/state/credentials"


@dataclass(frozen=True)
class Paths:
    """Every place of one operator, derived from the environment; nothing is made by asking."""

    data: Path
    config: Path
    state: Path
    credentials: Path = field(default_factory=_credentials)

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Paths:
        """Return the places that env's HOME and XDG variables name."""
        return cls(
            data=_base(env, "XDG_DATA_HOME", ".local/share") / "troupe",
            config=_base(env, "XDG_CONFIG_HOME", ".config") / "troupe",
            state=_base(env, "XDG_STATE_HOME", ".local/state") / "troupe",
            credentials=_credentials(env),
        )

    @property
    def roots(self) -> tuple[Path, ...]:
        """Return the folders that are troupe's own, with everything in them; what is above is the operator's."""
        return (self.data, self.config, self.state, self.credentials, self.replaced)

    @property
    def agents(self) -> Path:
        """Return the folder of the agents' environments, one folder each."""
        return self.data / "agents"

    @property
    def sandboxes(self) -> Path:
        """Return the folder in which a driver keeps its sandboxes' disks, one folder each."""
        return self.data / "sandboxes"

    @property
    def images(self) -> Path:
        """Return the folder of the kit images that agents share, read-only."""
        return self.data / "images"

    @property
    def kits(self) -> Path:
        """Return the folder of kits' files as pulled."""
        return self.data / "kits"

    @property
    def tools(self) -> Path:
        """Return the folder of the programs that troupe brings along for itself."""
        return self.data / "tools"

    @property
    def run(self) -> Path:
        """Return the folder of sockets and other things that a machine restart ends."""
        return self.state / "run"

    @property
    def locks(self) -> Path:
        """Return the folder of the files that kernel locks are held on."""
        return self.state / "locks"

    @property
    def replaced(self) -> Path:
        """Return the folder of the agents' own edits that upgrades replaced, one folder each."""
        return self.credentials.parent / "live-apply"

    @property
    def config_file(self) -> Path:
        """Return the machine settings' file."""
        return self.config / "config.toml"

    def agent(self, agent_id: str) -> Path:
        """Return an agent's environment folder."""
        return self.agents / agent_id

    def record(self, agent_id: str) -> Path:
        """Return an agent's record."""
        return self.agent(agent_id) / "source.json"

    def sandbox(self, agent_id: str) -> Path:
        """Return the folder that a driver owns for one sandbox."""
        return self.sandboxes / agent_id

    def egress(self, agent_id: str) -> Path:
        """Return the folder of an agent's egress policy and its broker socket."""
        return self.state / "egress" / agent_id

    def receipts(self, agent_id: str) -> Path:
        """Return the folder of an agent's receipts."""
        return self.state / "receipts" / agent_id

    def keys(self, agent_id: str) -> Path:
        """Return the folder of an agent's keys."""
        return self.credentials / agent_id

    def backups(self, agent_id: str) -> Path:
        """Return the folder of an agent's backups, one folder each."""
        return self.state / "backups" / agent_id

    def live_apply(self, agent_id: str) -> Path:
        """Return the folder of the agent's own edits that an upgrade replaced."""
        return self.replaced / agent_id

    def logs(self, agent_id: str) -> Path:
        """Return the folder of an agent's logs."""
        return self.state / "logs" / agent_id
