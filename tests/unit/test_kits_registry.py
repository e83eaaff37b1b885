"""A registry's answers are hostile: wrong digests, redirects, tokens that it wants, lists without an end."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.registries import TOKEN, USER, Reply, a_kit, lying, nobody, somebody
from troupe_tasks.errors import Refused, RegistryFailed, TroupeError, UsageError
from troupe_tasks.kits import oci, publish, pull
from troupe_tasks.kits.registry import Place, Registry

BASIC = f"Basic {base64.b64encode(f'{USER}:{TOKEN}'.encode()).decode()}"
NAME = oci.Name(type="mime", version="1.2.3")


def at(place: str, login: Callable[[str], Any] = nobody) -> Registry:
    return Registry(Place.of(f"{place}/kits"), login, deadline_s=5)


def having(files: Mapping[str, Reply]) -> Callable[[str, str, str], Reply]:
    """Return what answers by the end of the path, 404 else."""

    def answer(_method: str, path: str, _authorization: str) -> Reply:
        return next((reply for end, reply in files.items() if path.endswith(end)), Reply(404))

    return answer


def kit(
    change: Callable[[dict[str, Any]], None] = lambda _manifest: None,
) -> tuple[oci.Artifact, dict[str, Reply]]:
    """Return an artifact and what a registry says of it, its manifest changed."""
    artifact = oci.artifact(NAME, b"the archive")
    manifest = json.loads(artifact.manifest)
    change(manifest)
    return artifact, {
        "manifests/latest": Reply(body=json.dumps(manifest).encode()),
        oci.digest(artifact.config): Reply(body=artifact.config),
        oci.digest(artifact.layer): Reply(body=artifact.layer),
    }


def test_a_kit_is_found_by_its_tag() -> None:
    _, files = kit()
    with lying(having(files)) as seen:
        found = pull.offer(at(seen.place), "mime", "latest")
    assert found is not None
    assert found.name == NAME


def test_a_registry_that_claims_no_digest_is_asked_for_the_whole() -> None:
    _, files = kit()
    with lying(having(files)) as seen:
        data = at(seen.place).manifest("mime", "latest")
        assert data is not None
        assert at(seen.place).digest("mime", "latest") == oci.digest(data)
        assert at(seen.place).digest("mime", "1.2.3") is None


def setter(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: Any) -> None:
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        setter("schemaVersion", value=1),
        setter("schemaVersion", value="2"),
        setter("mediaType", value="application/vnd.oci.image.index.v1+json"),
        setter("artifactType", value="application/vnd.example.program"),
        setter("extra", value=1),
        setter("layers", value=[]),
        setter("layers", 0, "mediaType", value="application/vnd.oci.image.layer.v1.tar+gzip"),
        setter("layers", 0, "size", value=1 << 40),
        setter("layers", 0, "size", value=-1),
        setter("layers", 0, "digest", value="sha256:../../etc/passwd"),
        setter("layers", 0, "digest", value="md5:" + "0" * 32),
        setter("layers", 0, "urls", value=["https://elsewhere.example/"]),
        setter("config", "size", value=1 << 20),
        setter("config", "mediaType", value="application/vnd.oci.image.config.v1+json"),
        setter("annotations", value={str(n): "" for n in range(100)}),
    ],
)
def test_a_manifest_that_is_no_kits_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    _, files = kit(change)
    with lying(having(files)) as seen, pytest.raises(RegistryFailed, match="not of the form"):
        pull.offer(at(seen.place), "mime", "latest")


@pytest.mark.parametrize("body", [b"", b"[" * 30000, b"\xff\xfe", b'{"schemaVersion": 2}', b"null"])
def test_a_manifest_that_is_no_manifest_is_refused(body: bytes) -> None:
    with lying(having({"manifests/latest": Reply(body=body)})) as seen, pytest.raises(RegistryFailed):
        pull.offer(at(seen.place), "mime", "latest")


@pytest.mark.parametrize(
    "config", [oci.Name(type="other", version="1.2.3"), oci.Name(type="mime", version="2.0.0")]
)
def test_a_kit_of_another_name_than_was_asked_for_is_refused(config: oci.Name) -> None:
    artifact = oci.artifact(config, b"the archive")
    files = {
        "manifests/1.2.3": Reply(body=artifact.manifest),
        oci.digest(artifact.config): Reply(body=artifact.config),
    }
    with (
        lying(having(files)) as seen,
        pytest.raises(RegistryFailed, match=f"is {config.type} {config.version}"),
    ):
        pull.offer(at(seen.place), "mime", "1.2.3")


def test_a_manifest_that_its_own_digest_disowns_is_refused() -> None:
    artifact, files = kit()
    wrong = "sha256:" + "0" * 64
    files["manifests/latest"] = Reply(headers={"Docker-Content-Digest": wrong}, body=artifact.manifest)
    files[wrong] = Reply(body=artifact.manifest)
    with lying(having(files)) as seen:
        for reference in ("latest", wrong):
            with pytest.raises(RegistryFailed, match="not what its digest says"):
                pull.offer(at(seen.place), "mime", reference)


@pytest.mark.parametrize(
    "body",
    [b"the archivf", b"the arch", b"the archive and more", b""],
    ids=["changed", "cut", "longer", "empty"],
)
def test_a_blob_that_is_not_what_was_asked_for_is_refused(body: bytes) -> None:
    artifact, files = kit()
    digest = oci.digest(artifact.layer)
    files[digest] = Reply(body=body)
    with lying(having(files)) as seen, pytest.raises(RegistryFailed):
        at(seen.place).blob("mime", digest, size_bytes=len(artifact.layer))


def test_an_endless_blob_is_cut_off() -> None:
    def for_ever(write: Callable[[bytes], object]) -> None:
        while True:
            write(b"x" * 65536)

    digest = oci.digest(b"")
    with (
        lying(having({digest: Reply(body=for_ever)})) as seen,
        pytest.raises(RegistryFailed, match="more than 11"),
    ):
        at(seen.place).blob("mime", digest, size_bytes=11)


def test_a_redirect_is_followed_without_the_token() -> None:
    artifact, files = kit()
    digest = oci.digest(artifact.layer)
    with lying(having(files)) as storage:

        def answer(_method: str, _path: str, authorization: str) -> Reply:
            if not authorization:
                return Reply(401, {"WWW-Authenticate": 'Basic realm="kits"'})
            return Reply(307, {"Location": f"http://{storage.place}/somewhere/{digest}"})

        with lying(answer) as seen:
            found = at(seen.place, somebody).blob("mime", digest, size_bytes=len(artifact.layer))
    assert found == artifact.layer
    assert [authorization for _, _, authorization in seen.asked] == ["", BASIC]
    assert storage.asked == [("GET", f"/somewhere/{digest}", "")]


def test_redirects_without_an_end_are_left() -> None:
    with lying(lambda _method, path, _: Reply(302, {"Location": f"{path}x"})) as seen:
        with pytest.raises(RegistryFailed, match="302"):
            at(seen.place).blob("mime", oci.digest(b""), size_bytes=1)
        assert len(seen.asked) == 4


@pytest.mark.parametrize("location", ["http://registry.example/", "ftp://127.0.0.1/", "http://10.0.0.1/", ""])
def test_a_redirect_to_what_may_not_be_asked_is_refused(location: str) -> None:
    with lying(lambda *_: Reply(302, {"Location": location})) as seen, pytest.raises(RegistryFailed):
        at(seen.place).blob("mime", oci.digest(b""), size_bytes=1)


def test_a_manifest_is_not_redirected() -> None:
    with (
        lying(lambda *_: Reply(302, {"Location": "/v2/other"})) as seen,
        pytest.raises(RegistryFailed, match="302"),
    ):
        at(seen.place).manifest("mime", "latest")


class Giver:
    """Gives out tokens: one that stands for nobody and opens what is public, one for who has the operator's."""

    def __init__(self, *, public: bool, realm: str = "") -> None:
        self.public, self.realm, self.place = public, realm, ""

    def __call__(self, _method: str, path: str, authorization: str) -> Reply:
        if path.startswith("/token"):
            if authorization not in ("", BASIC):
                return Reply(401)
            return Reply(
                body=json.dumps({"token": "own" if authorization else "nobodys", "expires_in": 60}).encode()
            )
        opens = ("Bearer own", "Bearer nobodys") if self.public else ("Bearer own",)
        if authorization in opens:
            return Reply(body=b'{"name": "kits/mime", "tags": ["1.2.3"]}')
        realm = self.realm or f"http://{self.place}/token"
        return Reply(
            401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="kits",scope="repository:all:*"'}
        )


def test_a_public_kit_is_read_with_a_token_that_stands_for_nobody() -> None:
    giver = Giver(public=True)
    with lying(giver) as seen:
        giver.place = seen.place
        assert at(seen.place, nobody).tags("mime") == ("1.2.3",)
    token = ("GET", "/token?service=kits&scope=repository%3Akits%2Fmime%3Apull", "")
    assert seen.asked[1] == token


def test_a_private_kit_is_read_with_the_operators_token_which_goes_to_the_giver_alone() -> None:
    giver = Giver(public=False)
    with lying(giver) as seen:
        giver.place = seen.place
        there = at(seen.place, somebody)
        assert there.tags("mime") == there.tags("mime") == ("1.2.3",)
    with_token = [path for _, path, authorization in seen.asked if authorization == BASIC]
    assert with_token == ["/token?service=kits&scope=repository%3Akits%2Fmime%3Apull"]


@pytest.mark.parametrize("realm", ["http://registry.example/token", "file:///token", "http://10.0.0.1/token"])
def test_a_token_is_not_asked_for_in_the_clear(realm: str) -> None:
    with lying(Giver(public=False, realm=realm)) as seen, pytest.raises(RegistryFailed, match="no place"):
        at(seen.place, somebody).tags("mime")


@pytest.mark.parametrize("way", ["", "Digest realm=x", "Bearer service=x", 'Bearer realm=""'])
def test_a_registry_that_is_opened_in_an_unknown_way_is_told(way: str) -> None:
    with (
        lying(lambda *_: Reply(401, {"WWW-Authenticate": way})) as seen,
        pytest.raises(RegistryFailed, match="a way"),
    ):
        at(seen.place).tags("mime")


@pytest.mark.parametrize(
    "answer", [b"", b"{}x", b'{"token": 1}', b'{"token": "a\\nb"}', b'{"token": "\xc3\xa9"}']
)
def test_a_token_that_is_none_is_refused(answer: bytes) -> None:
    def giver(_method: str, path: str, _authorization: str) -> Reply:
        if path.startswith("/token"):
            return Reply(body=answer)
        return Reply(401, {"WWW-Authenticate": 'Bearer realm="/token"'})

    with lying(giver) as seen, pytest.raises(RegistryFailed, match="token"):
        at(seen.place).tags("mime")


def test_a_token_that_comes_back_in_an_answer_is_not_shown() -> None:
    def echo(_method: str, _path: str, authorization: str) -> Reply:
        if not authorization:
            return Reply(401, {"WWW-Authenticate": "Basic"})
        return Reply(
            500,
            {"Location": f"http://{authorization}/", "Docker-Content-Digest": authorization},
            TOKEN.encode(),
        )

    with lying(echo) as seen:
        for ask in (
            lambda: at(seen.place, somebody).tags("mime"),
            lambda: at(seen.place, somebody).upload("mime", b"x"),
        ):
            with pytest.raises(RegistryFailed) as told:
                ask()
            shown = f"{told.value} {told.value.hint} {told.value.__cause__}"
            assert TOKEN not in shown
            assert BASIC.split()[1] not in shown


def test_a_list_of_pages_is_read_to_its_end_and_one_without_an_end_is_left() -> None:
    def pages(_method: str, path: str, _authorization: str) -> Reply:
        page = int(path.partition("=")[2] or 0)
        further = {"Link": f'</v2/kits/mime/tags/list?page={page + 1}>; rel="next"'} if page < last else {}
        return Reply(headers=further, body=json.dumps({"name": "x", "tags": [f"1.0.{page}"]}).encode())

    for last in (2, 1000):
        with lying(pages) as seen:
            if last == 2:
                assert at(seen.place).tags("mime") == ("1.0.0", "1.0.1", "1.0.2")
            else:
                with pytest.raises(RegistryFailed, match="20 pages"):
                    at(seen.place).tags("mime")


def test_types_are_those_below_the_place_and_none_when_the_registry_does_not_tell() -> None:
    names = ["kits/mime", "kits/a/b", "mime", "kitsch", "kits/\x1b[2J", "kits/Upper", "kits/hermes"]
    with lying(having({"_catalog": Reply(body=json.dumps({"repositories": names}).encode())})) as seen:
        assert at(seen.place).types() == ("hermes", "mime")
    for reply in (
        Reply(404),
        Reply(405),
        Reply(403),
        Reply(401, {"WWW-Authenticate": 'Bearer realm="/token"'}),
    ):
        with lying(having({"_catalog": reply})) as seen:
            if reply.status == 401:
                with pytest.raises(RegistryFailed):  # it promised a token, and gave none out
                    at(seen.place).types()
            else:
                assert at(seen.place).types() is None


def test_a_place_that_is_none_is_told() -> None:
    for text in ("registry.example:99999/kits", "a..b:0x1/kits"):
        with pytest.raises(UsageError):
            Place.of(text)
    assert Place.of("registry.example/a/b").root.secure
    assert Place.of("registry.example/a/b").repository("mime") == "a/b/mime"
    assert not Place.of("localhost:5000").root.secure
    assert Place.of("localhost:5000").repository("mime") == "mime"


def test_an_upload_that_is_led_away_takes_no_token_along(tmp_path: Any) -> None:
    with lying(lambda *_: Reply(201)) as storage:

        def answer(method: str, _path: str, authorization: str) -> Reply:
            if not authorization:
                return Reply(401, {"WWW-Authenticate": "Basic"})
            return (
                Reply(404)
                if method == "HEAD"
                else Reply(202, {"Location": f"http://{storage.place}/put?state=1"})
            )

        with lying(answer) as seen:
            at(seen.place, somebody).upload("mime", b"x")
    assert storage.asked == [("PUT", f"/put?state=1&digest={oci.digest(b'x')}", "")]


def test_a_registry_that_takes_a_kit_and_has_another_is_told(tmp_path: Any) -> None:
    artifact = publish.packed(a_kit(tmp_path))

    def answer(method: str, path: str, _authorization: str) -> Reply:
        if method == "PUT":
            return Reply(201)
        if "manifests" in path and len(seen.asked) < 3:
            return Reply(404)
        return Reply(body=artifact.manifest + b" ") if "manifests" in path else Reply(200)

    with lying(answer) as seen, pytest.raises(RegistryFailed, match="not what was just put"):
        publish.publish(artifact, at(seen.place), lambda _: None)


def test_wrong_tokens_are_refused_not_asked_for_again() -> None:
    asked = []

    def person(place: str) -> Any:
        asked.append(place)
        return somebody(place)

    with lying(lambda *_: Reply(401, {"WWW-Authenticate": "Basic"})) as seen:
        there = at(seen.place, person)
        for _ in range(2):
            with pytest.raises(Refused):
                there.tags("mime")
    assert len(asked) == 1


def test_nobody_to_ask_is_an_error_that_says_so() -> None:
    def nobody_there(place: str) -> Any:
        raise UsageError(f"{place} lets nobody in without a token")

    with (
        lying(lambda *_: Reply(401, {"WWW-Authenticate": "Basic"})) as seen,
        pytest.raises(TroupeError, match="nobody"),
    ):
        at(seen.place, nobody_there).tags("mime")
