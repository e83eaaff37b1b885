"""Archives of all that an agent has: out of a sandbox, kept and proved on the host, and into another sandbox."""
