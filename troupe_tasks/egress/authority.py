"""The machine's own certificate authority, which the sandboxes alone trust: it lets the broker end their TLS.

Its private key is in authority/ of the state folder (0700, files 0600) and in the broker's memory, nowhere else.
Name constraints are not in its certificate: policy `open` lets through any public name, and a kit's list may grow
while the authority stays. What bounds it instead is who trusts it: no program of the host does, each sandbox
reaches hosts through the broker only, and it signs for servers only (extended key usage), never another authority
(path length 0).
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from troupe_tasks import durable, locks
from troupe_tasks.egress import tls
from troupe_tasks.egress.target import Target
from troupe_tasks.errors import FolderUnusable, StateUnreadable
from troupe_tasks.paths import Paths

CERTIFICATE_NAME = "ca.pem"
_FILE = "authority.pem"  # key and certificate in one file: there is no moment with one and not the other
_LASTS = timedelta(days=3650)
_RENEWED = timedelta(days=365)  # before its end, since running sandboxes hold the old one
_LEAF_LASTS = timedelta(days=3)
_SKEW = timedelta(days=2)  # clocks of sandboxes may be behind this machine's, or this one's be set back
_CACHED = 128  # hosts, about 30 KiB each


class Authority:
    """The authority as the broker holds it, with the certificates it made for hosts."""

    def __init__(self, paths: Paths) -> None:
        self._key, self._certificate = _have(paths)
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: OrderedDict[str, tuple[datetime, ssl.SSLContext]] = OrderedDict()
        self._minting: dict[str, asyncio.Future[ssl.SSLContext]] = {}
        # Making a certificate takes milliseconds, which other agents' streams should not wait for.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mint")

    @property
    def pem(self) -> bytes:
        """Return the authority's certificate."""
        return _pem(self._certificate)

    async def context(self, place: Target) -> ssl.SSLContext:
        """Return a TLS server's context for one host, with a certificate for exactly its name or address."""
        now = datetime.now(UTC)
        until, context = self._contexts.get(place.host, (now, None))
        if context is not None and now < until <= now + _LEAF_LASTS:  # nor has the clock been set back
            self._contexts.move_to_end(place.host)
            return context
        making = self._minting.get(place.host)
        if making is None:
            making = asyncio.get_running_loop().run_in_executor(self._pool, self._make, place, now)
            self._minting[place.host] = making
            making.add_done_callback(lambda done: self._made(place.host, done, until=now + _LEAF_LASTS / 2))
        return await asyncio.shield(making)

    def _make(self, place: Target, now: datetime) -> ssl.SSLContext:
        return tls.server_context(self._mint(place, now), name=None if place.is_address else place.host)

    def _made(self, host: str, done: asyncio.Future[ssl.SSLContext], *, until: datetime) -> None:
        del self._minting[host]
        if not done.cancelled() and done.exception() is None:
            self._contexts[host] = (until, done.result())
            while len(self._contexts) > _CACHED:
                self._contexts.popitem(last=False)

    def close(self) -> None:
        """End the thread that makes certificates."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _mint(self, place: Target, now: datetime) -> bytes:
        """Return the leaf's private key and the certificates, in PEM."""
        named = x509.IPAddress(ip_address(place.host)) if place.is_address else x509.DNSName(place.host)
        public = self._leaf_key.public_key()
        leaf = (
            _builder("a host", now - _SKEW, now + _LEAF_LASTS)
            .issuer_name(self._certificate.subject)
            .public_key(public)
            .add_extension(x509.SubjectAlternativeName([named]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        return _private(self._leaf_key) + _pem(leaf) + self.pem


def certificate(paths: Paths) -> bytes:
    """Return the authority's certificate in PEM, making the authority when there is none."""
    return _pem(_have(paths)[1])


def publish(paths: Paths, agent_id: str, pem: bytes | None = None) -> None:
    """Put the authority's certificate where an agent's sandbox sees it, beside its socket (0644).

    The folder is opened without following a link, and the file made under another name and renamed in it.
    """
    data = certificate(paths) if pem is None else pem
    place = paths.egress(agent_id) / "socket"
    with durable.told(place):
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise FolderUnusable(f"{place} belongs to another user")
        with durable.told(place / CERTIFICATE_NAME):
            _publish_in(folder, data)
    finally:
        os.close(folder)


def _publish_in(folder: int, data: bytes) -> None:
    temporary = f".{CERTIFICATE_NAME}.{os.getpid()}.new"
    if temporary in os.listdir(folder):
        os.unlink(temporary, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        os.fchmod(handle, 0o644)
        os.write(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(temporary, CERTIFICATE_NAME, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def _have(paths: Paths) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return key and certificate; only one process makes them, and makes them anew in their last year."""
    path = durable.make_private_dir(paths.state / "authority") / _FILE
    with locks.named(paths, "authority", wait_s=30):
        try:
            found = _read(durable.read_private(path), path.name)
        except FileNotFoundError:
            found = None
        now = datetime.now(UTC)
        if found is not None and _is_current(found[1], now):
            return found
        key = ec.generate_private_key(ec.SECP256R1())
        made = _self_signed(key, now)
        durable.write(path, _private(key) + _pem(made))
        return key, made


def _is_current(found: x509.Certificate, now: datetime) -> bool:
    return found.not_valid_before_utc <= now <= found.not_valid_after_utc - _RENEWED


def _read(data: bytes, name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        key = serialization.load_pem_private_key(data, None)
        found = x509.load_pem_x509_certificate(data)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or found.public_key() != key.public_key():
            raise ValueError("the key is another certificate's")
        found.verify_directly_issued_by(found)
    except (ValueError, TypeError, InvalidSignature) as error:
        hint = "Remove the file: a new authority is made, and `troupe restart --all` has the agents trust it."
        raise StateUnreadable(f"{name} in authority/ is not what troupe writes", hint=hint) from error
    return key, found


def _self_signed(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    public = key.public_key()
    builder = _builder("this machine's broker", now - _SKEW, now + _LASTS)
    return (
        builder.issuer_name(_name("this machine's broker"))
        .public_key(public)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )


def _builder(subject: str, since: datetime, until: datetime) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        subject_name=_name(subject),
        serial_number=x509.random_serial_number(),
        not_valid_before=since,
        not_valid_after=until,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "troupe"),
        x509.NameAttribute(NameOID.COMMON_NAME, text),
    ])  # fmt: skip


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=signs_certificates, crl_sign=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pem(made: x509.Certificate) -> bytes:
    return made.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
