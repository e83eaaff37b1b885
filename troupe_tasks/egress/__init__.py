"""The broker: what an agent may reach, and the log of what it asked for."""
