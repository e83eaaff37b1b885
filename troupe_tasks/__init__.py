"""Run a troupe of personal AI agents, each in its own sandbox."""

__version__ = "0.1.0"
