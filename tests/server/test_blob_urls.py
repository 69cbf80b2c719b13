"""Signed URLs of the embedded engine's blobs: written once, and handed out as they were published."""

import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tidemark.server.serve import server_in_memory
from tidemark.service.snapshots import MAX_ANSWER_BYTES

AT = "0000000000000001"
LARGE = bytes(range(256)) * (MAX_ANSWER_BYTES // 256) + b"end"


@dataclass(frozen=True)
class Served:
    url: str
    folder: Path

    @property
    def blobs(self) -> list[Path]:
        return [path for path in self.folder.rglob("snapshot/*/*") if path.is_file()]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with server_in_memory() as url:
        for path in ("/docs", "/docs/a"):
            assert httpx.put(url + path).status_code == 201
        httpx.post(f"{url}/docs/a", content=b"x", headers={"Content-Type": "application/octet-stream"})
        yield Served(url, tmp_path)


@pytest.mark.parametrize("body", [b"", b"folded", LARGE], ids=["empty", "small", "large"])
def test_an_upload_is_written_once_published_and_read_as_it_was(served: Served, body: bytes) -> None:
    snapshot = f"{served.url}/docs/a/snapshot/{AT}"
    begun = httpx.post(f"{snapshot}/upload").json()
    # Clients that were written before the headers were told send none.
    assert httpx.put(begun["url"], content=body).status_code == 200
    assert httpx.put(begun["url"], content=body).status_code == 412
    answer = httpx.put(begun["url"], content=body[::-1], headers=begun["headers"])
    assert answer.status_code == 412
    assert "with Snapshot-Upload" in answer.json()["error"]
    published = httpx.put(snapshot, headers={"Snapshot-Upload": begun["upload"], "Content-Type": "a/b"})
    assert published.status_code == 204
    assert httpx.put(begun["url"], content=b"x" * len(body)).status_code == 412
    assert httpx.get(snapshot, follow_redirects=True).content == body
    assert body in httpx.get(f"{served.url}/docs/a/bootstrap", follow_redirects=True).content


NOT_SIGNED = (
    b"x", b"", b"x?signature=", b"x?signature=%C3%A9", b"x?signature=%FF",
    b"x?signature=a&until=%C3%A9&type=%C3%A9&crc=%C3%A9", b"%FF?signature=a", b"%00/..%2F..?signature=a",
)  # fmt: skip


def test_a_url_that_was_not_signed_is_403(served: Served) -> None:
    address = urlsplit(served.url)
    for method, target in product((b"GET", b"PUT", b"HEAD", b"POST", b"TRACE"), NOT_SIGNED):
        head = (
            method + b" /v1/__blobs/" + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        with (
            socket.create_connection((address.hostname or "", address.port or 0)) as connection,
            connection.makefile("rb") as answer,
        ):
            connection.sendall(head)
            assert answer.read().startswith(b"HTTP/1.1 403 "), head


@pytest.mark.parametrize("body", [b"folded", LARGE], ids=["small", "large"])
def test_an_upload_whose_bytes_have_changed_is_not_handed_out_whole(
    served: Served, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A bit that flips in its file, or in that of the bootstrap response."""
    snapshot = f"{served.url}/docs/a/snapshot/{AT}"
    begun = httpx.post(f"{snapshot}/upload").json()
    httpx.put(begun["url"], content=body)
    httpx.put(snapshot, headers={"Snapshot-Upload": begun["upload"], "Content-Type": "a/b"})
    assert len(served.blobs) == (2 if body is LARGE else 1)
    for path in served.blobs:
        flipped = bytearray(path.read_bytes())
        flipped[len(flipped) // 2] ^= 1
        path.write_bytes(flipped)
    for url in (snapshot, f"{served.url}/docs/a/bootstrap"):
        if body is LARGE:
            with pytest.raises(httpx.RemoteProtocolError):
                httpx.get(url, follow_redirects=True)
        else:
            assert httpx.get(url).status_code == 503
    assert "damaged" in caplog.text
