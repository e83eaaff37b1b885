"""Read a file of ours into its strict model, or say what in it is not as troupe writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from troupe_tasks.errors import StateUnreadable
from troupe_tasks.text import line

Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], data: bytes, *, place: Path, hint: str = "") -> Model:
    """Return the JSON that was read from place as a model; raises StateUnreadable with the first complaint."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise StateUnreadable(
            f"{place} is not what troupe writes", cause=complaint(error), hint=hint
        ) from error


def complaint(error: ValidationError) -> str:
    """Return the first thing that a model complains of, and where, as one safe line."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return line(f"{where}: {first['msg']}" if where else first["msg"])
