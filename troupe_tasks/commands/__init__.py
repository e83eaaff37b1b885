"""The front door: one file per command; flags in, answer out, no logic."""
