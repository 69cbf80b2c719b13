"""Calls of webhooks: receivers that verify, are slow, die, redirect and never read."""

import base64
import gc
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any

import jwt
import orjson
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.subscriptions.scene import Scene
from tests.waiting import PATIENCE_SECONDS
from tidemark.outbound import connection
from tidemark.outbound.request import Url
from tidemark.protocol.caching import DOCUMENT
from tidemark.protocol.errors import WebhookUrlRejected
from tidemark.subscriptions import webhook
from tidemark.subscriptions.configuration import parse_webhook_url
from tidemark.subscriptions.signing_keys import PUBLISHED_BEFORE_MS, FolderKeys, SigningKeys, render_jwks
from tidemark.subscriptions.state import DeliveryFailure
from tidemark.subscriptions.webhook import MAX_RESPONSE_BYTES, DeliveryFailed, call_webhook

pytestmark = pytest.mark.slow

Serve = Callable[[socket.socket], None]
PUBLIC = parse_webhook_url("https://worker.example.com/hook", allow_local=False)
LOCAL = parse_webhook_url("http://localhost:1/", allow_local=True)


@contextmanager
def receiver(serve: Serve) -> Iterator[tuple[Url, list[bytes]]]:
    """A server that reads the request of each connection, and then calls `serve`."""
    got, taken = list[bytes](), list[socket.socket]()
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            taken.append(connection)
            with connection, suppress(OSError):
                got.append(b"")
                if serve is not never_reads:
                    got[-1] = read_request(connection)
                serve(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/hook?a=b"
        yield parse_webhook_url(url, allow_local=True), got
    finally:
        for each in (*taken, listener):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE_SECONDS)


def read_request(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as lines:
        head = b"".join(takewhile(b"\r\n".__ne__, lines))
        length = re.search(rb"(?i)^content-length: (\d+)", head, re.MULTILINE)
        return head + b"\r\n" + lines.read(int(length[1]) if length else 0)


def answers(text: bytes) -> Serve:
    return lambda connection: connection.sendall(text)


def never_reads(connection: socket.socket) -> None:
    hung_up = select.poll()
    hung_up.register(connection, select.POLLHUP)
    hung_up.poll(1000 * PATIENCE_SECONDS)


def drips(connection: socket.socket) -> None:
    """A byte now and then: no single read ever times out."""
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000:
        connection.sendall(bytes([byte]))
        time.sleep(0.02)


def drips_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for number in range(100_000):
        connection.sendall(b"X: %d\r\n" % number)
        time.sleep(0.1)  # More than 100 headers are an answer that nobody reads, and no silence.


def test_a_webhook_gets_a_post_with_the_given_body_and_headers() -> None:
    with receiver(answers(b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"done":true}')) as (url, got):
        response = call_webhook(url, b'{"a": 1}', {"Webhook-Signature": "t=1"}, 20.0)
    assert response == (200, b'{"done":true}')
    head, _, body = got[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /hook?a=b HTTP/1.1\r\n")
    assert b"Webhook-Signature: t=1" in head
    assert b"Host: 127.0.0.1:" in head
    assert body == b'{"a": 1}'


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    with receiver(answers(b"HTTP/1.1 200 OK\r\n\r\n")) as (elsewhere, found):
        place = f"http://{elsewhere.authority}/".encode()
        line = b"HTTP/1.1 %d x\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % (status, place)
        with receiver(answers(line)) as (url, _):
            response = call_webhook(url, b"{}", {}, 20.0)
    assert (response.status, found) == (status, [])


@pytest.mark.parametrize("serve", [never_reads, drips, drips_headers], ids=lambda serve: serve.__name__)
def test_a_receiver_that_never_finishes_is_cut_off_in_time(serve: Serve) -> None:
    """A body larger than the buffers on the way, so that one who never reads stops the sending too."""
    with receiver(serve) as (url, _), pytest.raises(DeliveryFailed) as failed:
        call_webhook(url, b"x" * 20_000_000 if serve is never_reads else b"{}", {}, 3.0)
    assert failed.value.failure is DeliveryFailure.SILENT


@pytest.mark.parametrize(
    "text",
    [
        b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", b"not HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc",
    ],
)  # fmt: skip
def test_a_receiver_that_hangs_up_may_have_got_the_request(text: bytes) -> None:
    with receiver(answers(text)) as (url, _), pytest.raises(DeliveryFailed) as failed:
        call_webhook(url, b"{}", {}, 20.0)
    assert failed.value.failure is DeliveryFailure.DROPPED


@pytest.mark.parametrize("is_found", [True, False])
def test_a_receiver_that_is_not_reached_may_get_the_same_request_again(
    is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup that hangs is part of the deadline."""
    hang = threading.Event().wait
    monkeypatch.setattr(
        connection, "resolve_host", lambda *_: ["::1"] if is_found else hang(PATIENCE_SECONDS)
    )
    with pytest.raises(DeliveryFailed, match=r"localhost:1: (no connection in time|ConnectError)") as failed:
        call_webhook(LOCAL, b"{}", {}, 1.0)
    assert failed.value.failure is DeliveryFailure.REFUSED


def test_no_more_of_a_chunked_response_is_read_either() -> None:
    sent = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n")
        for _ in range(1000):
            connection.sendall(b"1\r\nx\r\n" * 20_000)
        sent.set()

    with receiver(serve) as (url, _), suppress(DeliveryFailed):
        assert len(call_webhook(url, b"{}", {}, PATIENCE_SECONDS).body) <= MAX_RESPONSE_BYTES
    assert not sent.is_set()


def test_no_more_of_a_response_is_read_than_is_needed() -> None:
    with receiver(answers(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_000_000)) as (url, _):
        assert len(call_webhook(url, b"{}", {}, 20.0).body) == MAX_RESPONSE_BYTES


@pytest.mark.parametrize(
    ("url", "addresses"), [(PUBLIC, ["127.0.0.1"]), (LOCAL, ["10.0.0.1"]), (LOCAL, ["127.0.0.1", "8.8.8.8"])]
)
def test_a_webhook_leads_to_the_internet_and_a_local_one_to_this_machine(
    url: Url, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "resolve_host", lambda *_: addresses)
    text = "lead to an address of the public internet" if url is PUBLIC else "lead to this machine"
    with pytest.raises(WebhookUrlRejected, match=text):
        call_webhook(url, b"{}", {}, 20.0)


@pytest.mark.parametrize("serve", [answers(b"HTTP/1.1 200 OK\r\n\r\n"), never_reads], ids=["plain", "silent"])
def test_a_tls_handshake_that_fails_is_no_connection(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver(serve) as (local, _):
        monkeypatch.setattr(connection, "resolve_host", lambda *_: ["127.0.0.1"])
        monkeypatch.setattr(webhook, "is_public", lambda _: True)
        with pytest.raises(DeliveryFailed) as failed:
            call_webhook(replace(PUBLIC, port=local.port), b"{}", {}, 1.0)
    gc.collect()  # A connection that stays open is a ResourceWarning.
    assert failed.value.failure is DeliveryFailure.REFUSED


# --- signatures ---


def verified(body: bytes, header: str, jwks: Any) -> bool:
    """As a receiver verifies: with PyJWT's reading of the JWK, and nothing of ours."""
    parts = dict(part.split("=", 1) for part in header.split(","))
    [jwk] = [key for key in jwks["keys"] if key["kid"] == parts["kid"]]
    key = jwt.PyJWK(jwk).key
    assert isinstance(key, Ed25519PublicKey)
    signature = base64.urlsafe_b64decode(parts["ed25519"] + "==")
    try:
        key.verify(signature, parts["t"].encode() + b"." + body)
    except InvalidSignature:
        return False
    return True


def test_a_receiver_can_verify_the_signature(scene: Scene) -> None:
    scene.begin(webhook=True)
    scene.news()
    jwks = orjson.loads(orjson.dumps(render_jwks(scene.keys.published())))
    [header] = [headers["Webhook-Signature"] for headers in scene.receiver.headers]
    raw = orjson.dumps(scene.receiver.bodies[0])
    assert verified(raw, header, jwks)
    assert not verified(raw + b" ", header, jwks)
    assert not verified(raw, header.replace("t=", "t=9"), jwks)
    assert header.startswith(f"t={scene.clock.now_ms // 1000},kid=ds_")
    [key] = jwks["keys"]
    assert (key["kty"], key["crv"], key["alg"], key["use"]) == ("OKP", "Ed25519", "EdDSA", "sig")
    assert "d" not in key


def test_a_new_key_signs_once_receivers_can_know_it(scene: Scene) -> None:
    """Caches hold the set of keys for a while: what the new key signs before would be refused everywhere."""
    old = scene.keys.active(scene.clock())
    scene.clock.advance(1)
    new = scene.keys.rotate(scene.clock())
    other_process = SigningKeys(scene.writer.stores.table, scene.keys._private_keys)
    assert [key.kid for key in other_process.published()] == [old.kid, new.kid]
    scene.clock.advance(PUBLISHED_BEFORE_MS - 1)
    for keys in (scene.keys, other_process):
        assert keys.active(scene.clock()) == old
    by_old = other_process.sign(b"x", scene.clock())
    scene.clock.advance(1)
    for keys in (scene.keys, other_process):
        assert keys.active(scene.clock()) == new
    jwks = render_jwks(other_process.published())
    assert verified(b"x", by_old, jwks)
    assert verified(b"x", scene.keys.sign(b"x", scene.clock()), jwks)


def test_a_key_is_published_for_longer_than_the_set_of_keys_is_cached() -> None:
    cached_seconds = [int(value) for value in re.findall(r"max-age=(\d+)", DOCUMENT)]
    assert [seconds * 1000 < PUBLISHED_BEFORE_MS for seconds in cached_seconds] == [True]


def test_a_removed_key_no_longer_signs_and_its_private_half_is_deleted(scene: Scene) -> None:
    """At once, however young the next one is: whoever has the private half could sign as this server."""
    old = scene.keys.active(scene.clock())
    scene.keys.sign(b"x", scene.clock())
    new = scene.keys.rotate(scene.clock())
    scene.keys.remove(old)
    assert scene.keys.published() == [new]
    assert f"kid={new.kid}," in scene.keys.sign(b"x", scene.clock())
    with pytest.raises(KeyError):
        scene.keys._private_keys.load(old.kid)


def test_a_key_file_is_readable_by_its_owner_only(tmp_path: Any, scene: Scene) -> None:
    keys = SigningKeys(scene.worker.stores.table, FolderKeys(tmp_path / "webhook-keys"))
    kid = keys.active(0).kid
    assert keys.active(5).kid == kid
    [file] = (tmp_path / "webhook-keys").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    by_another_process = SigningKeys(scene.worker.stores.table, FolderKeys(file.parent)).sign(b"x", 0)
    assert verified(b"x", by_another_process, render_jwks(keys.published()))
    keys.remove(keys.active(0))
    assert list(file.parent.iterdir()) == []
