"""The rehearsal model: a deterministic stand-in for a model provider, on this machine."""
