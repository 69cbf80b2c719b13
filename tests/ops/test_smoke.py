"""`make smoke` and `make token` against the local system."""

import json
import re
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from tests.conformance.servers import running, temporary_directory, tidemark_server
from tests.http_server import Handler, serving
from tidemark.cli import __main__ as cli
from tidemark.ops import smoke
from tidemark.protocol.errors import OriginAccessDenied

SECRET = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    private = {"AUTH_SECRET": SECRET, "ALLOW_ANONYMOUS": "false", "LONG_POLL_SECONDS": "6"}
    with temporary_directory() as directory, running(tidemark_server("asgi", directory, **private)) as server:
        yield server.base_url


def token(*options: str, secret: str = SECRET) -> Result:
    """What `make token` prints."""
    return CliRunner().invoke(cli.main, ["token", *options], env={"AUTH_SECRET": secret})


def test_smoke_creates_appends_reads_waits_and_deletes(
    base_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_TOKEN", token(secret=SECRET + "\nan older one").stdout.strip())
    monkeypatch.setattr(smoke, "_SETTLE_SECONDS", 0.1)
    assert smoke.main([base_url + "/"]) == 0
    said = capsys.readouterr().out
    for step in ("create", "append", "read", "long-poll", "silence", "socket", "received", "delete"):
        assert f"{step} " in said
    assert "gone      404" in said
    assert "all as" in said


def watched_by_a_socket_of(
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    answers: Sequence[dict[str, Any]],
    patience_seconds: float = 60,
) -> None:
    """An append to `0000000000000005` while a socket is watched that tells no more than this."""

    def serve_client(client: ServerConnection) -> None:
        client.recv()
        for answer in answers:
            client.send(json.dumps(answer))
        client.recv()

    monkeypatch.setattr(smoke, "_WOKEN_SECONDS", patience_seconds)
    monkeypatch.setattr(smoke, "connect", lambda url, **_: connect(url, open_timeout=60))
    appended = SimpleNamespace(offset=f"{5:016}")
    stream: Any = SimpleNamespace(url="http://t/v1/stream/a", append=lambda _: appended)
    with serve(serve_client, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}/"
        answer = httpx.Response(status, json={"url": url}, request=httpx.Request("GET", "http://t"))
        monkeypatch.setattr(httpx, "get", lambda *_, **__: answer)
        smoke.watch_by_socket("http://t", stream, "")


WATCHED = {"stream": "/v1/stream/a", "offset": f"{0:016}", "seconds": 3600}


def test_smoke_says_that_it_has_skipped_the_socket_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watched_by_a_socket_of(monkeypatch, 404, [])
    assert "SKIPPED: GET /v1/socket is 404" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([], "no message for"),
        ([WATCHED], "no message for"),
        ([WATCHED, WATCHED | {"offset": f"{6:016}"}], "not 0000000000000005"),
        ([{"stream": "/v1/stream/a", "status": 503, "error": "no"}], "refused"),
    ],
    ids=["no answer", "no wake-up", "another tail", "refused"],
)
def test_smoke_fails_where_a_socket_tells_another_thing_or_nothing(
    monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]], said: str
) -> None:
    """Only for what does not come the wait is short."""
    patience_seconds = 0.2 if said == "no message for" else 60
    with pytest.raises(smoke.SmokeFailed, match=said):
        watched_by_a_socket_of(monkeypatch, 200, answers, patience_seconds)


def test_smoke_without_a_token_fails_and_says_what_to_set(
    base_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TIDEMARK_TOKEN", raising=False)
    assert smoke.main([base_url]) == 1
    shown = capsys.readouterr().err
    assert re.search("FAILED    create: 401: [^(]*token[^(]* [(]set TIDEMARK_TOKEN", shown), shown


def test_smoke_past_cloudfront_shows_the_servers_own_reason_first(capsys: pytest.CaptureFixture[str]) -> None:
    """And no advice on scopes, which are not at fault."""

    class PastTheEdge(Handler):
        def answer(self) -> None:
            self.received()
            self.respond(403, json.dumps({"error": OriginAccessDenied.message}).encode())

    with serving(PastTheEdge) as url:
        assert smoke.main([url]) == 1
    assert capsys.readouterr().err == f"FAILED    create: 403: {OriginAccessDenied.message}\n"


def test_smoke_fails_where_nothing_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert (smoke.main(["http://127.0.0.1:1"]), smoke.main(["http://"])) == (1, 1)
    assert "no answer" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        smoke.main(["example.com"])
