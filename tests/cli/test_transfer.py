"""`tidemark cp`: a copy goes on after any break, and each message is there once."""

import json
import random
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from tests.conformance.servers import Server, own_environment, running, tidemark_server
from tidemark.cli import transfer
from tidemark.cli.__main__ import main
from tidemark.cli.commands import RemoteServer
from tidemark.client import Stream, blocking


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tidemark_server("asgi", tmp_path_factory.mktemp("cp"))) as made:
        yield made


class Killed(BaseException):
    """The process ends here, at once."""


class BreakingTransport(httpx.HTTPTransport):
    """Loses requests and answers of the copy's appends, and ends the process around them. What was on its
    way then lands before a later append, or before the target is read."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance, self._late = chance, list[httpx.Request]()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._late and self._chance.random() < 0.4:
            super().handle_request(self._late.pop()).read()
        if request.method != "POST":
            return super().handle_request(request)
        fate = self._chance.choice(["lost", "unanswered", "killed before", "killed after", "", "", ""])
        if fate == "killed before":
            self._late.append(request)
            raise Killed
        if fate == "lost":
            raise httpx.ConnectError("no connection")
        response = super().handle_request(request)
        if fate:
            response.read()
            raise httpx.ReadError("no answer") if fate == "unanswered" else Killed
        return response


def run(server: Server, *arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["--url", server.base_url, "cp", *arguments], input=stdin)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream"])
def test_a_copy_that_is_killed_and_begun_again_has_each_message_once(
    server: Server, monkeypatch: pytest.MonkeyPatch, content_type: str, seed: int
) -> None:
    chance = random.Random(seed)
    source = Stream.create(f"{server.base_url}/v1/stream/{seed}/{content_type}", content_type=content_type)
    parts: list[Any] = [chance.randbytes(chance.randrange(1, 400)) for _ in range(60)]
    if content_type == "application/json":
        parts = [{"n": number, "text": part.hex()} for number, part in enumerate(parts)]
    for part in parts:
        source.append(part)
    source.close()
    monkeypatch.setattr(transfer, "_REQUEST_BYTES", 700)
    kills, ended, target = 0, None, f"copy/{seed}/{content_type}"
    monkeypatch.setattr("time.sleep", lambda _: None)
    with httpx.Client(transport=BreakingTransport(chance)) as client:
        monkeypatch.setattr(blocking, "_shared_client", lambda: client)
        while ended is None:
            try:
                ended = run(server, source.url, target)
            except Killed:
                kills += 1
    assert (ended.exit_code, kills > 3) == (0, True), ended.output
    monkeypatch.undo()
    copy = Stream(f"{server.base_url}/v1/stream/{target}").read()
    assert copy.messages == parts if content_type == "application/json" else copy.data == b"".join(parts)
    assert copy.closed
    again = run(server, source.url, target, "--json")
    unit = "messages" if content_type == "application/json" else "bytes"
    nothing = dict.fromkeys(("count", "found", "bytes"), 0)
    assert json.loads(again.stdout) | {"found": 0} == {"unit": unit, "closed": True, **nothing}


def test_a_file_becomes_a_stream_and_comes_back_and_is_completed(server: Server, tmp_path: Path) -> None:
    lines = b"".join(b'{"n": %d}\n' % number for number in range(500))
    (tmp_path / "in.jsonl").write_bytes(lines)
    assert run(server, f"file:{tmp_path}/in.jsonl", "files/1").stdout == "500 messages copied; 0 were there\n"
    (tmp_path / "out").write_bytes(lines[:95])  # cut off inside a line
    assert run(server, "files/1", f"file:{tmp_path}/out").stdout == "490 messages copied; 10 were there\n"
    assert (tmp_path / "out").read_bytes() == lines
    more = run(server, "-", "files/1", stdin=lines + b"7\n")
    assert more.stdout == "1 messages copied; 500 were there\n"
    assert run(server, "files/1", "-").stdout_bytes == lines + b"7\n"
    for other in (b"not a copy", b"not a copy\n"):
        (tmp_path / "other").write_bytes(other)
        assert "does not begin with" in run(server, "files/1", f"file:{tmp_path}/other").output
        assert (tmp_path / "other").read_bytes() == other


def test_the_last_line_of_a_growing_file_is_copied_once_it_has_an_end(server: Server, tmp_path: Path) -> None:
    """Or as it is with `--final`; a later run finds it in the target."""
    (file := tmp_path / "grows.jsonl").write_bytes(b"1\n12")
    name = f"file:{file}"
    left = "1 messages copied; 0 were there; the last line has no end of line: --final copies it\n"
    assert run(server, name, "grows").stdout == left
    for added, more, counts in [
        (b"34\n{", [], "1 messages copied; 1 were there; "),
        (b"}", ["--final"], "1 messages copied; 2 were there\n"),
        (b"", [], "0 messages copied; 3 were there\n"),
        (b"\n5\n", [], "1 messages copied; 3 were there\n"),
    ]:
        with file.open("ab") as opened:
            opened.write(added)
        assert run(server, name, "grows", *more).stdout.startswith(counts)
    assert Stream(f"{server.base_url}/v1/stream/grows").read().messages == [1, 1234, {}, 5]


def test_a_message_that_was_sent_indented_is_one_line_of_a_file(server: Server, tmp_path: Path) -> None:
    messages = [{"a": [1, "x\r\ny"]}, {"b": {"c": 2}}]
    source = Stream.create(f"{server.base_url}/v1/stream/indented", content_type="application/json")
    for message in messages:
        source.append(json.dumps(message, indent=2).replace("\n", "\r\n").encode())
    printed = CliRunner().invoke(main, ["--url", server.base_url, "cat", "indented"]).stdout_bytes
    assert [json.loads(line) for line in printed.split(b"\n")[:-1]] == messages
    copy = f"file:{tmp_path}/copy.jsonl"
    (tmp_path / "copy.jsonl").write_bytes(printed[:20])  # cut off inside the first message
    assert run(server, "indented", copy).stdout == "2 messages copied; 0 were there\n"
    assert (tmp_path / "copy.jsonl").read_bytes() == printed
    assert run(server, "indented", copy).stdout == "0 messages copied; 2 were there\n"
    assert run(server, copy, "again").stdout == "2 messages copied; 0 were there\n"
    assert run(server, "indented", "again").stdout == "0 messages copied; 2 were there\n"
    run(server, "indented", "exact")
    assert Stream(f"{server.base_url}/v1/stream/exact").read().data == source.read().data


def test_a_page_without_messages_is_not_the_end_of_the_source() -> None:
    """Compaction leaves such pages."""
    pending = transfer.Pending(iter([[b"1"], [], [b"2"]]), deque(), of_json=True)
    pending.drop([b"1", b"2"])
    assert pending.next() == []


def test_the_error_names_what_removed_the_beginning_of_the_source(server: Server) -> None:
    httpx.put(f"{server.base_url}/mirrored").raise_for_status()
    source = Stream.create(f"{server.base_url}/mirrored/trimmed", content_type="application/json")
    begin = source.append(1).offset
    source.append(2)
    Stream.create(f"{server.base_url}/mirrored/key", content_type="application/json", compact=True).append(2)
    run(server, source.url, "mirror")
    httpx.put(f"{source.url}/snapshot/{begin}", content=b"1").raise_for_status()
    for name, why in [
        ("trimmed", f"the source was trimmed and begins at offset {begin}"),
        ("key", "the source is compacted, so its older messages go"),
    ]:
        refused = run(server, f"/mirrored/{name}", "mirror")
        way = "a copy with --follow goes on all the same): copy to a new stream or file\n"
        assert (refused.exit_code, refused.output) == (
            1,
            f"Error: the target does not begin with the source's data ({why}; {way}",
        )


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (b'{"a": true}', b'{"a":1}', False),
        (b"[0]", b"[false]", False),
        (b"9007199254740993", b"9007199254740992", False),
        (b'{"a": 1.0, "b": "\\u00fc"}', '{"b":"ü","a":1}'.encode(), True),
    ],
)
def test_messages_are_the_same_if_a_server_may_have_written_one_as_the_other(
    one: bytes, other: bytes, *, is_same: bool
) -> None:
    assert transfer.is_same_value(one, other) is is_same


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-", "other"), "the target does not begin with the source's data"),
        (("other", "other"), "the same stream"),
        (("none", "other"), "there is no such stream: none"),
        (("other", "/no-bucket/other"), "Error: PUT http"),
        (("./no-file", "other"), "No such file"),
        (("other", "file:/dev/null/x"), "Not a directory"),
        (("-", "-"), "one of SOURCE and TARGET is a stream"),
    ],
)
def test_what_cannot_be_copied_is_refused(server: Server, arguments: tuple[str, ...], said: str) -> None:
    run(server, "-", "other", stdin=b"high tide")
    refused = run(server, *arguments, stdin=b"high water, and more")
    assert said in refused.output
    assert refused.exit_code in {1, 2}


PROFILES = 'profiles = {default = {url="http://mine"}, prod = {url="http://prod", token_file="prod.token"}}'


def written_profiles(home: Path, text: str, *, token: str = "p\n", token_mode: int = 0o600) -> Path:
    (home / "tidemark").mkdir()
    (home / "tidemark" / "config.toml").write_text(text)
    (file := home / "tidemark" / "prod.token").write_text(token)
    file.chmod(token_mode)
    return home


@pytest.mark.parametrize(
    ("profile", "text", "said"),
    [
        ("prod", PROFILES, "others may read the token in"),
        ("test", PROFILES, "; the profiles in it: default, prod"),
        ("prod", '[profiles.prod]\nurl = "http://prod"\ntoken = "t"', 'at most token_file = "…"'),
        ("prod", '[profiles.prod]\nurl = "prod:80"', "'prod:80' is not the URL of a server"),
        ("prod", PROFILES.replace("prod.", "~nobody-at-all/"), "'~nobody-at-all/token' cannot be read"),
        ("default", "profiles = 1", "is not TOML with [profiles.NAME]"),
    ],
)
def test_an_unusable_profile_is_wrong_usage(tmp_path: Path, profile: str, text: str, said: str) -> None:
    home = {"XDG_CONFIG_HOME": str(written_profiles(tmp_path, text, token_mode=0o640))}
    done = CliRunner().invoke(main, ["ls", "--profile", profile], env=home)
    assert (done.exit_code, said in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ("--token t --url http://home cp http://away/x y", {}, "home t, away -"),
        ("--token t --url http://home cp http://away/x y --source-token s", {}, "home t, away s"),
        ("cp x http://away/y", {"TIDEMARK_TOKEN": "t"}, "home t, away -"),
        ("cp x http://away/y --token a", {"TIDEMARK_TOKEN": "t"}, "home -, away a"),
        ("cp http://away/x y", {"TIDEMARK_TOKEN": "t", "TIDEMARK_SOURCE_TOKEN": "s"}, "home t, away s"),
        ("cat http://HOME:80/x", {"TIDEMARK_TOKEN": "t"}, "home t"),
        ("cat http://home:81/x", {"TIDEMARK_TOKEN": "t"}, "home -"),
        ("cat http://away/x", {"TIDEMARK_TOKEN": "t"}, "away -"),
        ("cat http://away/x --token a", {"TIDEMARK_TOKEN": "t"}, "away a"),
        ("cat x --url http://away", {"TIDEMARK_TOKEN": "t"}, "away -"),
        ("cat x --url http://away", {"TIDEMARK_TOKEN": "t", "TIDEMARK_URL": ""}, "away t"),
        ("cat moved", {"TIDEMARK_TOKEN": "t"}, "home t, away -"),
        ("cat x", {"TOKEN": "not ours"}, "home -"),
        ("--profile prod cat x", {"TIDEMARK_TOKEN": "t"}, "prod p"),
        ("cat x --profile prod --url http://away", {"TIDEMARK_TOKEN": "t"}, "away -"),
        ("--token a cat x --profile prod", {}, "prod a"),
        ("cat x", {"TIDEMARK_URL": ""}, "mine -"),
        ("cat x", {"TIDEMARK_URL": "", "TIDEMARK_TOKEN": "t"}, "mine t"),
        ("--profile default cat http://prod/x", {"TIDEMARK_TOKEN": "t"}, "prod -"),
    ],
)
def test_a_token_goes_to_its_own_server_alone(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: str,
    environment: dict[str, str],
    expected: str,
) -> None:
    """Also of files that begin with a byte order mark."""
    sent = set()
    home = written_profiles(tmp_path, f"\ufeff{PROFILES}", token="\ufeffp\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))

    def answer(request: httpx.Request) -> httpx.Response:
        token = request.headers.get("Authorization", "-").removeprefix("Bearer ")
        sent.add(f"{request.url.host} {token}")
        if request.url.path.endswith("/moved"):
            return httpx.Response(307, headers={"Location": "http://away/x"})
        headers = {"Stream-Next-Offset": "0", "Content-Type": "text/plain", "Stream-Up-To-Date": "true"}
        return httpx.Response(200, headers=headers)

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        monkeypatch.setattr(blocking, "_shared_client", lambda: client)
        done = CliRunner().invoke(main, arguments.split(), env={"TIDEMARK_URL": "http://home", **environment})
    assert done.exit_code == 0, done.output
    assert sent == {*expected.split(", ")}


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["ls", "--profile", "prod"], {}, "/tidemark/prod.token is empty: it must have a token"),
        (["ls"], {"TIDEMARK_TOKEN": ""}, "TIDEMARK_TOKEN is empty"),
        (["ls", "--token", " "], {}, "--token is empty"),
        (["cp", "http://away/x", "y"], {"TIDEMARK_SOURCE_TOKEN": ""}, "the source's token is empty"),
    ],
)
def test_an_empty_token_is_an_error(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], said: str
) -> None:
    home = {"XDG_CONFIG_HOME": str(written_profiles(tmp_path, PROFILES, token="\n"))}
    done = CliRunner().invoke(main, arguments, env=home | environment)
    assert (done.exit_code, said in done.output) == (2, True), done.output


def test_a_refusal_says_that_the_environments_token_was_not_sent(server: Server, tmp_path: Path) -> None:
    private = {"AUTH_SECRET": "s" * 32, "ALLOW_ANONYMOUS": "false"}
    with running(tidemark_server("asgi", tmp_path, **private)) as away:
        environment = {"TIDEMARK_URL": server.base_url, "TIDEMARK_TOKEN": "t"}
        done = CliRunner().invoke(main, ["cat", f"{away.base_url}/v1/stream/x"], env=environment)
    assert f"; the token is for {server.base_url} alone: give --token" in done.output


def test_a_server_behind_a_path_has_its_streams_there() -> None:
    server, url = RemoteServer("http://host/tides/"), "http://host/tides/v1/stream/chat/42"
    assert server.stream_url("chat/42") == server.serving(url).stream_url(f"{url}?offset=-1") == url


def test_a_copy_that_follows_ends_with_its_source(server: Server) -> None:
    source = Stream.create(f"{server.base_url}/v1/stream/followed", content_type="text/plain")
    source.append("high")
    command = [sys.executable, "-m", "tidemark.cli", "cp", source.url, "-", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=own_environment()) as copy:
        assert copy.stdout is not None
        assert copy.stdout.read(4) == b"high"
        source.close(" tide")
        assert copy.communicate()[0] == b" tide"
