"""Kits: what an agent type is made of, and the image that its agents share."""
