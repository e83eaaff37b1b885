"""The bounds of everything that an agent or an upstream can make the broker hold or wait for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds for one agent; every figure is per connection unless it says otherwise."""

    connections: int = 256  # at once, per agent
    lookups: int = 4  # at once, per agent: a hanging name server holds threads, and only this agent's
    head_bytes: int = 32 * 1024
    head_count: int = 100
    head_s: float = 15.0  # from a request's first byte to the end of its headers
    idle_s: float = 75.0  # a kept connection between two requests
    resolve_s: float = 5.0
    connect_s: float = 10.0
    quiet_s: float = 900.0  # no byte either way: a model may think for minutes
    stuck_s: float = 120.0  # a reader that takes nothing
    chunk_bytes: int = 32 * 1024
    streams: int = 100  # of one HTTP/2 connection
    agent_window_bytes: int = 64 * 1024  # of one stream's body on its way out; four of them a connection
    host_window_bytes: int = 128 * 1024  # of one stream's answer: farther away, so more is on its way
    upstreams: int = 512  # connections to hosts at once, per agent
    kept_s: float = (
        50.0  # an idle connection to a host: many close them after 60 s, at any moment of the next request
    )
