"""TLS over any pipe, in memory: asyncio's own keeps 256 KiB a connection, this one what is on its way.

Towards agents the broker is the server, with a certificate of the machine's authority; towards hosts it is a
client that trusts the system's authorities and checks the name.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from pathlib import Path

from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.pipe import Pipe
from troupe_tasks.egress.verdict import Cut, Refusal

_RECORD_BYTES = 16 * 1024
# Where distributions keep what they trust; Python may have been built with another place in mind.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
# Certificate files in a folder are read when one is needed: a bundle would cost a megabyte or more at once.
_FOLDERS = ("/etc/ssl/certs",)


class _Session(ssl.SSLObject):
    """A session that remembers which name its client asked for."""

    asked: str | None = None


class Sealed:
    """A pipe inside TLS; its figures count the bytes inside."""

    def __init__(
        self, under: Pipe, context: ssl.SSLContext, *, limits: Limits, server_name: str | None = None
    ) -> None:
        self.limits = limits
        self.received_bytes = 0
        self.sent_bytes = 0
        self._under = under
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._is_server = server_name is None
        self._session = context.wrap_bio(
            self._incoming, self._outgoing, server_side=self._is_server, server_hostname=server_name
        )

    async def handshake(self) -> None:
        """Agree on keys and protocol; raises ssl.SSLError or Cut. The caller has the deadline."""
        while True:
            try:
                self._session.do_handshake()
            except ssl.SSLWantReadError:
                await self._turn()
            except ssl.SSLError:
                self._under.put(self._outgoing.read())  # the alert that says why
                raise
            else:
                self._under.put(self._outgoing.read())
                await self._under.drained()
                return

    @property
    def protocol(self) -> str:
        """Return the agreed protocol: h2, or http/1.1 where none was."""
        return self._session.selected_alpn_protocol() or "http/1.1"

    @property
    def asked_name(self) -> str | None:
        """Return the name that the client asked for."""
        return self._session.asked if isinstance(self._session, _Session) else None

    async def _turn(self) -> None:
        """Send what TLS has to say and wait for what it waits for."""
        self._under.put(self._outgoing.read())
        await self._under.drained()
        if data := await self._under.read():
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def read(self) -> bytes:
        """Return the next bytes, none at the end; raises Cut when the other side broke the connection."""
        while True:
            try:
                data = self._session.read(_RECORD_BYTES)
            except ssl.SSLWantReadError:
                await self._turn()
                continue
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLEOFError as error:
                # Many programs hang up without TLS's own goodbye. From a host, it could be somebody else's cut.
                if self._is_server:
                    return b""
                raise Cut("the connection ended without TLS's own end") from error
            except ssl.SSLError as error:
                raise Cut("TLS broke") from error
            self.received_bytes += len(data)
            return data

    def put(self, data: bytes) -> None:
        """Queue bytes, sealed; raises Cut when TLS has ended."""
        view = memoryview(data)
        self.sent_bytes += len(data)
        try:
            while view:
                view = view[self._session.write(view[:_RECORD_BYTES]) :]
                self._under.put(self._outgoing.read())
        except ssl.SSLError as error:
            raise Cut("TLS has ended") from error

    async def drained(self) -> None:
        """Wait until the other side keeps up; raises Cut when it does not."""
        await self._under.drained()

    def queued_bytes(self) -> int:
        """Return how much is queued."""
        return self._under.queued_bytes()

    def end(self) -> None:
        """Say TLS's goodbye and end the sending side."""
        with contextlib.suppress(ssl.SSLError):  # the other side has not said its own yet, or never will
            self._session.unwrap()
        self._under.put(self._outgoing.read())
        self._under.end()

    def abort(self) -> None:
        """Drop the connection and what is still unsent."""
        self._under.abort()

    def close(self) -> None:
        """Close the connection once what is queued is sent."""
        self._under.close()


def server_context(pem: bytes, *, name: str | None) -> ssl.SSLContext:
    """Return a server's context with a private key and its certificates; clients have to ask for name.

    Clients name no host when they mean an address (RFC 6066, section 3): name is None then.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    context.set_alpn_protocols(["h2", "http/1.1"])
    context.sslobject_class = _Session

    def check(session: ssl.SSLSocket | ssl.SSLObject, asked: str | None, _: ssl.SSLContext) -> int | None:
        if isinstance(session, _Session):
            session.asked = asked or ""
        said = asked.lower() if asked else None
        return None if said == name else int(ssl.AlertDescription.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)

    context.sni_callback = check
    # OpenSSL's loader wants a file: this one is memory that ends with its handle (memfd_create(2)).
    handle = os.memfd_create("leaf", os.MFD_CLOEXEC)
    try:
        os.write(handle, pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
    return context


def client_context(protocols: list[str]) -> ssl.SSLContext:
    """Return a client's context that trusts the system's authorities.

    Not ssl.create_default_context, nor its defaults: those obey SSL_CERT_FILE, SSL_CERT_DIR and SSLKEYLOGFILE.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.hostname_checks_common_name = False
    context.set_alpn_protocols(protocols)
    for folder in _FOLDERS:
        if any(Path(folder).glob("*.0")):
            context.load_verify_locations(capath=folder)
            return context
    for bundle in _BUNDLES:
        if Path(bundle).is_file():
            context.load_verify_locations(cafile=bundle)
            return context
    raise Refusal(502, "certificate", "this machine trusts no authorities: install ca-certificates")
