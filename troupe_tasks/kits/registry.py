"""What troupe asks of a registry: the few calls of the OCI distribution specification 1.1 that kits need."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from troupe_tasks.errors import Refused, RegistryFailed, UsageError
from troupe_tasks.kits import archive, grant, https, oci

_DEADLINE_S = 30.0
_TRANSFER_DEADLINE_S = 300.0
_LIST_CAP_BYTES = 1 << 20
_PAGES = 20
_REDIRECTS = 3
_NEXT = re.compile(r'<([^<>\s]{1,2000})>\s*;\s*rel="?next"?')
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PULL, _PUSH = "pull", "pull,push"
_CATALOG = "registry:catalog:*"
_Text = Annotated[str, StringConstraints(max_length=300)]


class _Tags(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: _Text
    tags: tuple[_Text, ...] | None = Field(max_length=10_000)


class _Catalog(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    repositories: tuple[_Text, ...] | None = Field(max_length=10_000)


_List = TypeVar("_List", bound=_Tags | _Catalog)


@dataclass(frozen=True)
class Place:
    """Where kits are: HOST[:PORT][/PATH]. Plain http on this machine, https everywhere else."""

    text: str
    root: https.Url
    path: str

    @classmethod
    def of(cls, text: str) -> Place:
        """Return the place that a checked setting names; raises UsageError."""
        host, _, path = text.partition("/")
        scheme = "http" if https.loopback(host.partition(":")[0]) else "https"
        try:
            return cls(text, https.url(f"{scheme}://{host}/v2/"), path)
        except ValueError as error:
            raise UsageError(f"{text} is no place of a registry", cause=str(error)) from error

    def repository(self, kind: str) -> str:
        """Return the name of a kit's repository at that registry."""
        return f"{self.path}/{kind}".lstrip("/")


@dataclass
class Registry:
    """A registry, and what this command may show to it."""

    place: Place
    login: grant.Login = field(repr=False)
    deadline_s: float = _DEADLINE_S
    _passes: dict[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._purse = grant.Purse(self.place.root.place, self.login)

    def manifest(self, kind: str, reference: str) -> bytes | None:
        """Return the manifest of a tag or a digest, None when there is none; raises RegistryFailed."""
        answer = self._call(
            "GET", self._at(kind, f"manifests/{reference}"), scope=_scope(self.place.repository(kind), _PULL),
            headers={"Accept": oci.MANIFEST_TYPE}, cap_bytes=oci.MANIFEST_CAP_BYTES, fine=(200, 404),
        )  # fmt: skip
        if answer.status == 404:
            return None
        found = oci.digest(answer.body)
        claimed = answer.headers.get("docker-content-digest", found)
        if found != (reference if _DIGEST.fullmatch(reference) else claimed):
            raise RegistryFailed(f"{self._name(kind)}: {reference} is not what its digest says", cause=found)
        return answer.body

    def digest(self, kind: str, reference: str) -> str | None:
        """Return the digest of what a tag names, by the registry's word if it says; None when there is none."""
        answer = self._call(
            "HEAD", self._at(kind, f"manifests/{reference}"), scope=_scope(self.place.repository(kind), _PULL),
            headers={"Accept": oci.MANIFEST_TYPE}, fine=(200, 404),
        )  # fmt: skip
        claimed = answer.headers.get("docker-content-digest", "")
        if answer.status == 404 or _DIGEST.fullmatch(claimed):
            return claimed or None
        data = self.manifest(kind, reference)
        return oci.digest(data) if data is not None else None

    def blob(self, kind: str, digest: str, *, size_bytes: int) -> bytes:
        """Return a blob, proved to have the digest; raises RegistryFailed."""
        answer = self._call(
            "GET", self._at(kind, f"blobs/{digest}"), scope=_scope(self.place.repository(kind), _PULL),
            cap_bytes=min(size_bytes, archive.CAP_BYTES), deadline_s=_TRANSFER_DEADLINE_S, follows=True,
        )  # fmt: skip
        if len(answer.body) != size_bytes or oci.digest(answer.body) != digest:
            raise RegistryFailed(
                f"{self._name(kind)}: what came is not {digest}",
                cause=f"{len(answer.body)} bytes of {size_bytes}",
            )
        return answer.body

    def tags(self, kind: str) -> tuple[str, ...]:
        """Return the tags of a kit; a kit that the registry does not have has none."""
        scope = _scope(self.place.repository(kind), _PULL)
        return self._listed(_Tags, self._at(kind, "tags/list"), scope, lambda page: page.tags) or ()

    def types(self) -> tuple[str, ...] | None:
        """Return the types that the registry has kits of, None when it does not tell."""
        try:
            found = self._listed(
                _Catalog, self.place.root.to("_catalog"), _CATALOG, lambda page: page.repositories
            )
        except Refused:
            found = None
        if found is None:  # most public registries tell nobody
            return None
        start = self.place.repository("")
        names = (name.removeprefix(start) for name in found if name.startswith(start))
        return tuple(sorted(name for name in names if re.fullmatch(r"[a-z][a-z0-9-]{0,30}", name)))

    def upload(self, kind: str, data: bytes) -> None:
        """Give the registry a blob that it may have already; raises RegistryFailed."""
        digest, scope = oci.digest(data), _scope(self.place.repository(kind), _PUSH)
        if (
            self._call(
                "HEAD", self._at(kind, f"blobs/{digest}"), scope=scope, fine=(200, 404), follows=True
            ).status
            == 200
        ):
            return
        begun = self._call("POST", self._at(kind, "blobs/uploads/"), scope=scope, fine=(202,))
        to = self._led(self.place.root, begun.headers.get("location", ""))
        target = f"{to.target}{'&' if '?' in to.target else '?'}digest={digest}"
        self._call(
            "PUT", https.Url(to.secure, to.host, to.port, target), scope=scope, body=data, fine=(201,),
            headers={"Content-Type": "application/octet-stream"}, deadline_s=_TRANSFER_DEADLINE_S,
        )  # fmt: skip

    def tag(self, kind: str, reference: str, manifest: bytes) -> None:
        """Have a tag name a manifest, and see that it does; raises RegistryFailed."""
        self._call(
            "PUT", self._at(kind, f"manifests/{reference}"), scope=_scope(self.place.repository(kind), _PUSH),
            body=manifest, headers={"Content-Type": oci.MANIFEST_TYPE}, fine=(201,),
        )  # fmt: skip
        if self.manifest(kind, reference) != manifest:
            raise RegistryFailed(f"{self._name(kind)}: {reference} is not what was just put there")

    def _name(self, kind: str) -> str:
        return f"{self.place.text}/{kind}"

    def _at(self, kind: str, what: str) -> https.Url:
        return self.place.root.to(f"{self.place.repository(kind)}/{what}")

    def _listed(
        self, model: type[_List], at: https.Url, scope: str, of: Callable[[_List], tuple[str, ...] | None]
    ) -> tuple[str, ...] | None:
        found: list[str] = []
        for _ in range(_PAGES):
            answer = self._call("GET", at, scope=scope, cap_bytes=_LIST_CAP_BYTES, fine=(200, 404, 405))
            if answer.status != 200:
                return None
            found += of(oci.read(model, answer.body, what=f"the list that {at.place} gave")) or ()
            further = _NEXT.search(answer.headers.get("link", ""))
            if further is None:
                return tuple(found)
            at = self._led(at, further[1])
        raise RegistryFailed(f"{self.place.text} lists more than {_PAGES} pages")

    def _call(
        self, method: str, at: https.Url, *, scope: str, headers: Mapping[str, str] | None = None, body: bytes = b"",
        cap_bytes: int = 4096, deadline_s: float = 0, fine: tuple[int, ...] = (200,), follows: bool = False,
    ) -> https.Answer:  # fmt: skip
        """Ask, open what is closed, follow a redirect of a blob, and return an answer of a status that is fine."""

        def ask(to: https.Url) -> https.Answer:
            # A token is for the registry: where it sends us, another has to let us in by the address alone.
            token = self._passes.get(scope) if to.origin == self.place.root.origin else None
            given = {**(headers or {}), **({"Authorization": token} if token else {})}
            request = https.Request(method, to, headers=given, body=body)
            return https.exchange(request, cap_bytes=cap_bytes, deadline_s=deadline_s or self.deadline_s)

        answer = ask(at)
        if answer.status == 401:
            answer = self._opened(answer, scope, lambda: ask(at))
        for _ in range(_REDIRECTS if follows else 0):
            if answer.status not in (301, 302, 303, 307, 308):
                break
            at = self._led(at, answer.headers.get("location", ""))
            answer = ask(at)
        if answer.status in (401, 403):
            raise Refused(
                f"{at.place} does not let you do that", cause=f"it answered {answer.status}",
                hint="Check the token (USER:TOKEN, or the token alone) and what it may do, then run it again.",
            )  # fmt: skip
        if answer.status not in fine:
            raise RegistryFailed(f"{at.place} answered with status {answer.status}")
        return answer

    def _opened(self, closed: https.Answer, scope: str, again: Callable[[], https.Answer]) -> https.Answer:
        """Try as nobody, where that is a thing, then as the operator."""
        wanted = grant.challenge(closed, self.place.text)
        for own in (False, True) if wanted.scheme == "bearer" else (True,):
            # Public registries give out their list to nobody: that is no reason to ask a person.
            if own and scope == _CATALOG and wanted.scheme == "bearer" and not self._purse.asked:
                break
            basic = self._purse.basic() if own else None
            if wanted.scheme == "basic":
                found = basic
            else:
                found = grant.bearer(
                    wanted, scope, basic=basic, asker=self.place.root, deadline_s=self.deadline_s
                )
            if found is None:
                continue
            self._passes[scope] = found
            closed = again()
            if closed.status not in (401, 403):
                break
        return closed

    def _led(self, at: https.Url, text: str) -> https.Url:
        try:
            return at.to(text)
        except ValueError as error:
            raise RegistryFailed(
                f"{at.place} leads to no place that may be asked", cause=str(error)
            ) from error


def _scope(repository: str, actions: str) -> str:
    return f"repository:{repository}:{actions}"
