"""What a sealed file says of itself."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.creds import HOST_ID, TPM_ID
from troupe_tasks.keystore.form import Form, form_of

# As a Debian 13 machine sealed it, by its host key, for a user.
REAL = b"""\
VbntHThZTUOoMZ0uuzMqxiAAAAABAAAADAAAABAAAAAnTG4Tx3sGgz8obl4AAAAABwAAAAAAAABzXfi
8cOsCNKPYX6590B6ptM2s1w5G8+Ath08lrm2IjlNFUwwpZMWUl2mWOJKqaH7IwfEmoAjK
"""


def sealed(form_id: str, length: int = 100) -> bytes:
    return base64.b64encode(bytes.fromhex(form_id) + bytes(length))


def test_a_real_file_is_known() -> None:
    assert form_of(REAL) is Form.HOST


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (sealed(TPM_ID), Form.TPM),
        (sealed(HOST_ID), Form.HOST),
        (sealed("93a894094874449090caf2fc93cab553"), Form.SYSTEM),
        (sealed("5a1c6a86df9d4096b1d5a65e0862f19a"), Form.SYSTEM),
        (sealed("058469daf6f54324800549da0f8ea2fb"), Form.NULL),
        (sealed(TPM_ID, 47), Form.UNKNOWN),
        (sealed(TPM_ID)[:-3], Form.UNKNOWN),
        (b"", Form.UNKNOWN),
        (b"sk-a-plain-key", Form.UNKNOWN),
        (b"\xff" * 200, Form.UNKNOWN),
    ],
)
def test_a_file_says_what_it_was_sealed_with(data: bytes, form: Form) -> None:
    assert form_of(data) is form


@given(st.binary(max_size=300))
def test_any_bytes_are_no_sealed_key_unless_they_say_so(data: bytes) -> None:
    assert form_of(data) is Form.UNKNOWN
    assert form_of(base64.b64encode(data)) is Form.UNKNOWN
