"""What a sealed key says of itself: its first 16 bytes name what it was sealed with.

This is looked at, because `--with-key=` is not binding: for anybody but root the seal is made by systemd's
credential service, which is not even told it (systemd 257). The service takes the TPM where it finds one and the
host key alone where it does not.
"""

from __future__ import annotations

import base64
import binascii
from enum import StrEnum
from typing import Final

_ID_BYTES: Final = 16
_LEAST_BYTES: Final = 64  # the header, an initialisation vector and a tag alone are more


class Form(StrEnum):
    """What a sealed key needs to be opened."""

    TPM = "the TPM and the host key"
    HOST = "the host key alone"
    SYSTEM = "the system's scope, not a user's"
    NULL = "no key at all"
    UNKNOWN = "a form that is not known here, or it is damaged"


# systemd's src/shared/creds-util.h, CRED_AES256_GCM_BY_*: scoped to a user, then to the system.
_FORMS: Final = {
    "ef4ac13679a9480ea7db68897f9f165d": Form.TPM,
    "adbc4ca3efb64201ba881b6f2e4095ea": Form.TPM,  # and a signed policy over the booted kernel
    "55b9ed1d38594d43a8319d2ebb332ac6": Form.HOST,
    "93a894094874449090caf2fc93cab553": Form.SYSTEM,
    "af4950a849134eb1a73846304ff30c05": Form.SYSTEM,
    "0c7cc07b117645919c4b0bea08bc20fe": Form.SYSTEM,
    "faf7eb9341e3412ca1a436f95a29362f": Form.SYSTEM,
    "5a1c6a86df9d4096b1d5a65e0862f19a": Form.SYSTEM,
    "058469daf6f54324800549da0f8ea2fb": Form.NULL,
}


def form_of(data: bytes) -> Form:
    """Return the form of a sealed key's file."""
    try:
        raw = base64.b64decode(b"".join(data.split()), validate=True)
    except binascii.Error:
        return Form.UNKNOWN
    if len(raw) < _LEAST_BYTES:
        return Form.UNKNOWN
    return _FORMS.get(raw[:_ID_BYTES].hex(), Form.UNKNOWN)
