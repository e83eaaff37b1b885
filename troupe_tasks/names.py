"""Turn the name that people read into the ID that commands take."""

from __future__ import annotations

import re
import unicodedata

from troupe_tasks.errors import UsageError

NAME_LIMIT = 35
ID_LIMIT = 63  # an ID is a host name's label too; a few signs fold to several letters each
# The machine's own services are called and have logs as an agent would: no agent gets such an ID.
BROKER, REHEARSAL = SHARED = ("broker", "rehearsal")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_SANDBOX = re.compile(rf"({_ID.pattern})--[0-9]+")
# Letters that Unicode does not take apart into a base letter and an accent.
_FOLDED = str.maketrans(
    {"ß": "ss", "ẞ": "ss", "æ": "ae", "Æ": "ae", "œ": "oe", "Œ": "oe", "ø": "o", "Ø": "o", "đ": "d",
     "Đ": "d", "ð": "d", "Ð": "d", "þ": "th", "Þ": "th", "ł": "l", "Ł": "l", "ı": "i"}
)  # fmt: skip


def agent_id(name: str) -> str:
    """Return the ID of a display name, or refuse the name with the reason.

    Raises UsageError for a name that is empty, too long, holds a control character, or folds to nothing or to an ID
    that the machine has for itself.
    """
    if not name.strip():
        raise UsageError("the name is empty", hint='Give one, for example: --name "Mr. Doyle".')
    if len(name) > NAME_LIMIT:
        raise UsageError(f"the name has {len(name)} characters; at most {NAME_LIMIT} are allowed")
    if any(unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and c != "\u200d" for c in name):
        raise UsageError("the name holds a control character", hint="Use letters, digits, spaces and signs.")
    folded = unicodedata.normalize("NFKD", name.translate(_FOLDED)).translate(_FOLDED).lower()
    bare = "".join(c for c in folded if not unicodedata.combining(c))
    derived = re.sub(r"[^a-z0-9]+", "-", bare).strip("-")
    if not derived:
        raise UsageError(
            "the name folds to an empty ID",
            cause="an ID is made of its ASCII letters and digits, and it has none",
            hint="Add a letter or a digit to the name.",
        )
    if len(derived) > ID_LIMIT:
        raise UsageError(
            f"the name folds to an ID of {len(derived)} characters; at most {ID_LIMIT} are allowed"
        )
    if derived in SHARED:
        raise UsageError(
            f"the name folds to the ID {derived}, which a service of this machine has",
            hint="Choose another name.",
        )
    return derived


def is_id(text: str) -> bool:
    """Tell whether text is what an agent's ID is made of."""
    return len(text) <= ID_LIMIT and _ID.fullmatch(text) is not None


def checked_id(text: str) -> str:
    """Return text when it has the form of an ID; a display name is told its ID."""
    if is_id(text):
        return text
    if found := _SANDBOX.fullmatch(text[:200]):
        raise UsageError(
            "that is a sandbox, not an agent", cause="each move of an agent gives it another sandbox",
            hint=f"Its agent is `{found[1]}`.",
        )  # fmt: skip
    try:
        hint = f"Did you mean `{agent_id(text)}`? `troupe list` shows the IDs."
    except UsageError:
        hint = "`troupe list` shows the IDs."
    raise UsageError(
        "that is not an agent's ID", cause="an ID has lowercase letters, digits and hyphens", hint=hint
    )
