"""The machine's authority: private, made once, trusted by what it is published to, good for exact names."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from troupe_tasks.egress import authority, tls
from troupe_tasks.egress import policy as policies
from troupe_tasks.egress.authority import Authority
from troupe_tasks.egress.policy import EgressPolicy
from troupe_tasks.egress.target import Target
from troupe_tasks.errors import FolderUnusable, StateUnreadable
from troupe_tasks.paths import Paths

HOST = "api.example.org"


def agree(context: ssl.SSLContext, pem: bytes, asked: str) -> ssl.SSLObject:
    """Shake hands in memory and return the client's session; raises ssl.SSLError."""
    trusting = ssl.create_default_context(cadata=pem.decode())
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(into, out, server_hostname=asked)
    server = context.wrap_bio(out, into, server_side=True)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client


def test_a_strict_client_trusts_a_host_by_its_exact_name_or_address() -> None:
    async def scene() -> None:
        paths = Paths.from_env()
        held = Authority(paths)
        context = await held.context(Target(HOST, 443))
        assert agree(context, authority.certificate(paths), HOST).version() == "TLSv1.3"
        for other in ("www.example.org", "x.api.example.org", "example.org"):
            with pytest.raises(ssl.SSLError):
                agree(context, held.pem, other)
        by_address = await held.context(Target("93.184.216.34", 443, is_address=True))
        assert agree(by_address, held.pem, "93.184.216.34").version()
        with pytest.raises(ssl.SSLError):
            agree(by_address, held.pem, HOST)
        assert await held.context(Target(HOST, 443)) is context
        held.close()

    asyncio.run(scene())


def test_a_leaf_is_short_lived_random_and_no_authority() -> None:
    held = Authority(Paths.from_env())
    now = datetime.now(UTC)
    made = [x509.load_pem_x509_certificates(held._mint(Target(HOST, 443), now)) for _ in range(2)]
    leaf, root = made[0]
    assert root.public_bytes(serialization.Encoding.PEM) == held.pem
    assert leaf.serial_number != made[1][0].serial_number
    assert leaf.not_valid_before_utc < now - timedelta(hours=24)
    assert now + timedelta(hours=24) < leaf.not_valid_after_utc < now + timedelta(days=8)
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName(HOST)]
    basic = root.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (basic.ca, basic.path_length) == (True, 0)
    held.close()


def test_contexts_are_bounded_and_the_same_host_is_made_once_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        monkeypatch.setattr(authority, "_CACHED", 3)
        held = Authority(Paths.from_env())
        same = await asyncio.gather(*(held.context(Target(HOST, 443)) for _ in range(10)))
        assert len(set(map(id, same))) == 1
        for number in range(5):
            await held.context(Target(f"h{number}.example.org", 443))
        assert len(held._contexts) == 3
        held.close()

    asyncio.run(scene())


@pytest.mark.parametrize("umask", [0, 0o777])
def test_the_private_key_is_private_under_any_umask(umask: int) -> None:
    paths = Paths.from_env()
    before = os.umask(umask)
    try:
        authority.certificate(paths)
    finally:
        os.umask(before)
    folder = paths.state / "authority"
    (file,) = folder.iterdir()
    assert (stat.S_IMODE(folder.stat().st_mode), stat.S_IMODE(file.stat().st_mode)) == (0o700, 0o600)


def test_racing_processes_make_one_authority() -> None:
    program = (
        "import sys; from troupe_tasks.paths import Paths; from troupe_tasks.egress import authority;"
        "sys.stdout.buffer.write(authority.certificate(Paths.from_env()))"
    )
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
        )
        for _ in range(4)
    ]
    assert len({process.communicate(timeout=60)[0] for process in racing}) == 1


def test_it_is_made_anew_in_its_last_year_and_when_it_comes_from_the_future(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = Paths.from_env()
    first = authority.certificate(paths)
    assert authority.certificate(paths) == first
    monkeypatch.setattr(authority, "_RENEWED", authority._LASTS + timedelta(days=1))
    second = authority.certificate(paths)
    assert second != first
    monkeypatch.undo()
    assert authority.certificate(paths) == second


def test_a_file_that_is_not_an_authority_is_told_without_its_content() -> None:
    paths = Paths.from_env()
    authority.certificate(paths)
    file = paths.state / "authority" / "authority.pem"
    file.write_bytes(file.read_bytes().replace(b"MI", b"XX", 1))
    with pytest.raises(StateUnreadable) as told:
        authority.certificate(paths)
    assert "BEGIN" not in str(told.value)


def test_publishing_follows_no_link_and_leaves_one_readable_file() -> None:
    paths = Paths.from_env()
    policies.save(paths, EgressPolicy(id="jane", rehearsal=False))
    folder = paths.egress("jane") / "socket"
    precious = paths.state / "precious"
    precious.write_text("kept")
    (folder / "ca.pem").symlink_to(precious)
    (folder / f".ca.pem.{os.getpid()}.new").symlink_to(precious)
    authority.publish(paths, "jane")
    assert precious.read_text() == "kept"
    (file,) = folder.iterdir()
    assert not file.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert file.read_bytes() == authority.certificate(paths)
    assert b"PRIVATE" not in file.read_bytes()
    folder.rename(paths.state / "elsewhere")
    folder.symlink_to(paths.state / "elsewhere")
    with pytest.raises(FolderUnusable):
        authority.publish(paths, "jane")


def test_the_system_s_authorities_are_found() -> None:
    context = tls.client_context(["http/1.1"])
    assert context.verify_mode is ssl.CERT_REQUIRED
