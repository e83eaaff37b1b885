"""The Invoke namespace: `invoke --list` and `./troupe --help` show the same commands."""

from troupe_tasks.namespace import namespace

__all__ = ["namespace"]
