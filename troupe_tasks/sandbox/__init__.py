"""The runner: what any sandbox can be asked, and the drivers that do it."""
