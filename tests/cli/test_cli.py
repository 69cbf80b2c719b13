"""The `tidemark` command against a server, in each way in."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from tests.available import require_program
from tests.conformance.servers import ROOT, Server, own_environment, running, tidemark_server
from tests.ports import free_port
from tidemark.cli.__main__ import main
from tidemark.cli.terminal import visible

TIME = r"20\d\d-\d\d-\d\dT[\d:]{8}\.\d{3}Z"
COMMAND = [sys.executable, "-m", "tidemark.cli"]


@pytest.fixture(scope="module", params=["asgi", "lambda"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("cli")
    with running(tidemark_server(request.param, directory, LONG_POLL_SECONDS="2")) as made:
        yield made


def run(
    server: Server | str, *arguments: str, stdin: bytes | None = None, status: int = 0, **more: str
) -> bytes:
    """What the command prints; its errors too where it fails. In a process of its own if it reads."""
    url = server if isinstance(server, str) else server.base_url
    if stdin is None:
        done = CliRunner().invoke(main, ["--url", url, *arguments], env=more)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert done.exit_code == status, done.output
        return done.output_bytes if status else done.stdout_bytes
    command = [*COMMAND, "--url", url, *arguments]
    ran = subprocess.run(
        command, input=stdin, capture_output=True, timeout=240, env=own_environment() | more, check=False
    )
    assert ran.returncode == status, ran.stderr
    return ran.stdout + ran.stderr if status else ran.stdout


def started(url: str, *arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*COMMAND, "--url", url, *arguments], env=own_environment(), **pipes)


def values(printed: bytes) -> list[Any]:
    return [json.loads(line) for line in printed.splitlines()]


@pytest.fixture
def stream() -> str:
    return f"cli/{uuid.uuid4().hex[:8]} ü"


def test_lines_become_messages_and_come_back(server: Server, stream: str) -> None:
    """JSON as it was sent, byte for byte."""
    lines = b'{"n":  1, "n": 0.12345678901234567890}\n\n[2]\n"\\u00fc"\n'
    assert run(server, "append", stream, "--create", "application/json", stdin=lines) == b"3 messages\n"
    assert run(server, "tail", stream, "--no-follow") == lines.replace(b"\n\n", b"\n")
    assert values(run(server, "tail", stream, "--no-follow", "--last", "2")) == [[2], "ü"]
    assert values(run(server, "tail", stream, "--no-follow", "--from", f"{39:016}")) == [[2], "ü"]
    starts = {"2099-01-01T00:00Z": 0, "2020-01-01T00:00Z": 3, "0s": 0, "1h": 3, "2d": 3, "999999999d": 3}
    for start, count in starts.items():
        assert len(values(run(server, "cat", stream, "--from", start))) == count, start
    for command in ("tail", "cat"):
        assert values(run(server, command, stream, "-n", "1", "--before", f"{43:016}")) == [[2]]


@pytest.mark.parametrize(
    ("content_type", "sent"),
    [
        ("text/plain", "\n\n# One\n\n \nzwei ü\n\n".encode()),
        ("application/octet-stream", random.Random(7).randbytes(700_000)),
    ],
)
def test_bytes_and_text_return_unchanged(server: Server, stream: str, content_type: str, sent: bytes) -> None:
    said = run(server, "append", stream, "--create", content_type, stdin=sent)
    assert said == b"%d bytes\n" % len(sent)
    url = f"{server.base_url}/v1/stream/{stream.replace(' ', '%20')}"
    assert run(server, "tail", url, "--no-follow") == sent


@pytest.mark.parametrize(
    ("content_type", "sent", "said"),
    [
        ("text/plain", "zwei ü".encode(), {"text": "zwei ü"}),
        ("text/plain", b"half \xc3", {"base64": "aGFsZiDD"}),
        ("image/png", b"\xff", {"base64": "/w=="}),
    ],
)
def test_with_json_a_write_of_bytes_is_an_object(
    server: Server, stream: str, content_type: str, sent: bytes, said: dict[str, str]
) -> None:
    run(server, "append", stream, "--create", content_type, stdin=sent)
    [line] = values(run(server, "cat", stream, "--json"))
    assert re.fullmatch(TIME, line.pop("time"))
    assert line == {"offset": f"{0:016}", "next_offset": f"{len(sent):016}", **said}


def test_with_json_a_message_is_in_an_object_as_it_was_sent(server: Server, stream: str) -> None:
    lines = b'1\n{"n":  0.1234567890123456789}\n'
    run(server, "append", stream, "--create", "application/json", stdin=lines)
    for command in (("cat", stream, "--json"), ("--json", "cat", stream, "-n", "1")):
        line = run(server, *command).decode().splitlines()[-1]
        begin = re.escape(f'{{"offset": "{2:016}", "next_offset": "{32:016}", "time": "')
        assert re.fullmatch(rf'{begin}{TIME}", "message": {{"n":  0.1234567890123456789}}}}', line)


def test_a_format_has_offsets_that_other_commands_take_and_times(server: Server, stream: str) -> None:
    """Also of a page backwards, and of the writes of a stream of bytes."""
    for lines in (b'1\n{"a":\t"%s"}\n', b"33\n"):
        run(server, "append", stream, "--create", "application/json", stdin=lines)
    found = run(server, "cat", stream, "--format", "%o %e %t %s %%").decode().splitlines()
    assert [line.split()[:2] for line in found] == [
        [f"{a:016}", f"{b:016}"] for a, b in ((0, 2), (2, 14), (14, 17))
    ]
    assert re.fullmatch(rf'\S+ \S+ {TIME} {{"a":\t"%s"}} %', found[1])
    assert run(server, "cat", stream, "--format", "%s", "--from", f"{2:016}") == b'{"a":\t"%s"}\n33\n'
    assert run(server, "tail", stream, "-n", "1", "--before", f"{14:016}", "--format", "%o") == b"%016d\n" % 2
    run(server, "close", stream)
    for command in (("cat",), ("tail",), ("tail", "--last", "2", "--before", f"{17:016}")):
        assert run(server, *command, stream, "--where", ":in:[33]", "--where", ":exists") == b"33\n"
    assert run(server, "cat", stream, "--where", ":eq:33", "--format", "%o %s") == b"%016d 33\n" % 14
    text = f"{stream}/text"
    for part in (b"high", b"tide"):
        run(server, "append", text, "--create", "text/plain", stdin=part)
    run(server, "close", text)
    assert run(server, "tail", text, "--format", "%o %s") == b"%016d high\n%016d tide\n" % (0, 4)
    inside = ("cat", text, "-n", "1", "--before", f"{6:016}", "--format", "%o %e %s")
    assert run(server, *inside) == b"%016d %016d ti\n" % (4, 6), "a page ends inside a write"


@pytest.mark.parametrize(
    ("line", "said"),
    [(b"{oops", b"Invalid JSON"), (b'"%b"' % (b"x" * 4_194_301), b"It is larger than 4,194,302")],
)
@pytest.mark.parametrize("after", [b"\n3\n", b""], ids=["then more", "then the end"])
def test_a_line_that_cannot_be_appended_is_named_by_its_number(
    server: Server, stream: str, line: bytes, said: bytes, after: bytes
) -> None:
    """Also in a file that begins with a byte order mark."""
    lines = b"\xef\xbb\xbf1\n\n2\n" + line + after
    failed = run(server, "append", stream, "--create", "application/json", stdin=lines, status=1)
    assert b"Line 4 of the input: " + said in failed
    assert b"The lines before it were appended" in failed
    assert values(run(server, "tail", stream, "--no-follow")) == [1, 2]


def test_a_line_of_a_slow_pipe_is_appended_as_it_comes_and_a_tail_follows_until_the_end(
    server: Server, stream: str
) -> None:
    run(server, "append", stream, "--create", "application/json", stdin=b"1\n")
    url = server.base_url
    with (
        started(url, "tail", stream, stdout=subprocess.PIPE) as reader,
        started(url, "append", stream, "--close", stdin=subprocess.PIPE) as writer,
    ):
        assert reader.stdout is not None
        assert writer.stdin is not None
        assert reader.stdout.readline() == b"1\n"
        for line in (b"2\n", b"3\n"):
            writer.stdin.write(line)
            writer.stdin.flush()
            assert reader.stdout.readline() == line, "the pipe is still open"
        writer.stdin.close()
        assert reader.stdout.read() == b""


def shown_on_a_terminal(server: Server, *arguments: str, stdout: Any = None) -> bytes:
    """What the command writes there until it ends; it would stop where nobody reads."""
    terminal, far = os.openpty()
    with started(server.base_url, *arguments, stdout=stdout or far, stderr=far):
        os.close(far)
        shown = read_terminal(terminal)
    os.close(terminal)
    return shown


def read_terminal(terminal: int) -> bytes:
    shown = b""
    with suppress(OSError):  # Linux raises it at the end of a terminal.
        while piece := os.read(terminal, 65_536):
            shown += piece
    return shown


def test_progress_is_shown_on_terminals_alone(server: Server, stream: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"%d\n" % number for number in range(3000)))
    arguments = ["append", stream, "--create", "application/json", str(file)]
    shown = shown_on_a_terminal(server, *arguments)
    assert b"1,000 messages, 2.8 KiB of 13.6 KiB, " in shown
    assert shown.endswith(b"B/s\r\x1b[K3000 messages\r\n")
    shown = shown_on_a_terminal(server, "cp", stream, f"file:{tmp_path / 'copy'}")
    assert b"messages copied, 10.6 KiB, " in shown
    assert shown.endswith(b"B/s\r\x1b[K3,000 messages copied; 0 were there\r\n")
    with (tmp_path / "printed").open("wb") as printed:
        shown = shown_on_a_terminal(server, "cat", stream, stdout=printed)
    assert shown.startswith(b"\r\x1b[K1 pages, ")
    assert (tmp_path / "printed").read_bytes() == (tmp_path / "copy").read_bytes() == file.read_bytes()
    assert b"pages" not in shown_on_a_terminal(server, "cat", stream)
    command = [*COMMAND, "--url", server.base_url, *arguments]
    piped = subprocess.run(command, capture_output=True, check=True, env=own_environment())
    assert (piped.stdout, piped.stderr) == (b"3000 messages\n", b"")


def test_a_terminal_gets_the_control_characters_of_a_message_as_text(server: Server, stream: str) -> None:
    sent = b"red \x1b[31m \xc2\x9b5m\tend\n"
    run(server, "append", stream, "--create", "text/plain", "--close", stdin=sent)
    for command in (("tail", stream), ("cp", stream, "-")):  # A copy shows its progress behind it.
        assert shown_on_a_terminal(server, *command).startswith(b"red \\x1b[31m \\x9b5m\tend\r\n")


def test_a_terminal_gets_the_control_characters_of_a_name_as_text(server: Server, stream: str) -> None:
    """Of C1, and those that turn the direction of a text."""
    assert visible("a\u202eb") == r"a\u202eb", "an earlier release took it"
    name = f"{stream}/\x9b5mb"
    run(server, "append", name, "--create", "text/plain", stdin=b"x")
    title, row = shown_on_a_terminal(server, "ls", stream).decode().splitlines()
    assert row.startswith(rf"{stream}/\u009b5mb  open    text/plain  1 B   ")
    assert row.endswith(" ago")
    assert [title.index(name) for name in ("STATUS", "SIZE")] == [row.index("open"), row.index("1 B")]
    assert name.encode() in run(server, "ls", stream), "a pipe gets it as it is"


def test_a_tail_waits_for_a_stream_that_is_not_there_yet(server: Server, stream: str) -> None:
    """A URL names the server itself."""
    url = f"{server.base_url}/v1/stream/{quote(stream)}"
    with started("http://127.0.0.1:1", "tail", url, "--wait", stdout=subprocess.PIPE) as reader:
        time.sleep(0.5)  # So it asks in vain at first, unless it starts slowly.
        run(server, "append", stream, "--create", "text/plain", "--close", stdin=b"high tide")
        assert reader.communicate()[0] == b"high tide"


def test_ctrl_c_ends_a_tail_without_a_word(server: Server, stream: str) -> None:
    run(server, "append", stream, "--create", "text/plain", stdin=b"x")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(server.base_url, "tail", stream, **pipes) as reader:
        assert reader.stdout is not None
        assert reader.stdout.read(1) == b"x"
        reader.send_signal(signal.SIGINT)
        assert reader.communicate()[1] == b""
    assert reader.returncode == 130


def test_streams_and_buckets_are_listed(server: Server, stream: str) -> None:
    for name in ("a", "b"):
        run(server, "append", f"{stream}/{name}", "--create", "text/plain", stdin=b"x")
    printed = run(server, "ls", stream).decode().splitlines()
    assert [line.split("  ")[:4] for line in printed] == [
        [f"{stream}/{name}", "open", "text/plain", "1 bytes"] for name in ("a", "b")
    ]
    for arguments in (("--json", "ls", stream), ("ls", stream, "--json")):
        listed = [each["stream_id"] for each in values(run(server, *arguments))]
        assert listed == [f"{stream}/a", f"{stream}/b"], arguments
    assert run(server, "ls", "--buckets", "none-with-this-prefix") == b""


def test_subscriptions_are_made_listed_shown_and_deleted(server: Server) -> None:
    name = f"sub{uuid.uuid4().hex[:8]}"
    run(server, "create", f"{name}/wakes", "--content-type", "application/json")
    run(server, "append", f"{name}/tasks/1", "--create", "text/plain", stdin=b"welcome")
    run(server, "sub", "create", name, "--stream", f"{name}/tasks/1", "--wake-stream", f"{name}/wakes")
    assert name in run(server, "sub", "ls", name).decode()
    assert f"path {name}/tasks/1  link_type explicit" in run(server, "sub", "info", name).decode()
    run(server, "sub", "delete", name)
    assert b"SUBSCRIPTION_NOT_FOUND" in run(server, "sub", "info", name, status=1)


def test_a_command_works_off_a_shared_stream(server: Server, stream: str) -> None:
    """A message as it was sent, at the place that TIDEMARK_OFFSET names; again if the command fails."""
    lines, name = b'{"n": 1.00000000000000000001}\n"b"\n', f"sub{uuid.uuid4().hex[:8]}"
    run(server, "append", stream, "--create", "application/json", "--close", stdin=lines)
    run(server, "sub", "create", name, "--shared", "--stream", stream, "--offset=-1")
    [taken] = values(run(server, "sub", "take", name, "--max", "1"))
    assert (taken["offset"], taken["delivery"]) == (f"{30:016}", 1)
    run(server, "sub", "take", name, "--max", "1", "--done", taken["receipt"], "--lease", "1")
    once = 'cat; echo " $TIDEMARK_OFFSET"; test -e tried || { touch tried; exit 1; }'
    with TemporaryDirectory() as place:
        command = [*COMMAND, "--url", server.base_url, "sub", "work", name, "--", "sh", "-c", once]
        ran = subprocess.run(command, cwd=place, capture_output=True, check=True, env=own_environment())
    assert ran.stdout.split() == [b'"b"', f"{34:016}".encode()] * 2


def test_the_names_of_streams_are_completed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silently nothing if the server does not answer."""
    name, bucket = f"c{uuid.uuid4().hex[:8]}", f"/b-{uuid.uuid4().hex[:8]}"
    httpx.put(server.base_url + bucket).raise_for_status()
    for each in (f"{name}/a", f"{bucket}/doc"):
        run(server, "create", each)

    def completed(*words: str) -> list[str]:
        shell = ShellComplete(main, {}, "tidemark", "_TIDEMARK_COMPLETE")
        return [item.value for item in shell.get_completions([*words[:-1]], words[-1])]

    monkeypatch.setenv("TIDEMARK_URL", server.base_url)
    assert completed("tail", name) == completed("cp", "-", f"{name}/") == [f"{name}/a"]
    assert completed("cat", f"{bucket}/d") == [f"{bucket}/doc"]
    away = f"http://127.0.0.1:{free_port()}"
    assert completed("--url", away, "tail", name) == completed("tail", "--url", away, name) == []


#: What is typed before the tab, and the stream that it completes.
TYPED = {
    "{}:4": ":42",
    "{}/b": "/b c",
    r"{}/\$": "/$(touch ran)",
    "'{}/it": "/it's",
    "'{}/k": "/k'",
    '"{}/q': '/q"`$x`\\!',
    "{}/ü": "/ü*,~#",
    "'{}:x": ":x y:z",
}
SET_UP = {
    "bash": ["bash --norc --noprofile -i", 'eval "$(tidemark completion bash)"'],
    "zsh": ["zsh -f -i", 'autoload -Uz compinit; compinit -D -u; eval "$(tidemark completion zsh)"'],
    "fish": ["fish --no-config -i", "tidemark completion fish | source"],
}


@pytest.mark.parametrize("shell", SET_UP)
def test_a_shell_completes_a_name_with_any_character(server: Server, tmp_path: Path, shell: str) -> None:
    require_program(shell)
    command = written_command(tmp_path)
    name = f"c{uuid.uuid4().hex[:8]}"
    for number, end in enumerate(TYPED.values()):
        run(server, "append", name + end, "--create", "text/plain", stdin=b"<message %d>\n" % number)
    start, set_up = SET_UP[shell]
    lines = [set_up, *(f"tidemark cat {typed.format(name)}\t" for typed in TYPED), "exit", ""]
    terminal, far = os.openpty()
    environment = own_environment() | {"TIDEMARK_URL": server.base_url, "PATH": command, "LC_ALL": "C.UTF-8"}
    environment |= {"HOME": str(tmp_path), "TERM": "xterm"}
    shell_command = ["timeout", "240", "setsid", "-c", *start.split()]
    with subprocess.Popen(shell_command, stdin=far, stdout=far, stderr=far, env=environment, cwd=tmp_path):
        os.close(far)
        os.write(terminal, "\n".join(lines).encode())
        shown = read_terminal(terminal)
    os.close(terminal)
    assert re.findall(rb"<message (\d+)>", shown) == [b"%d" % number for number in range(len(TYPED))], shown
    assert not (tmp_path / "ran").exists()


def test_info_prints_the_status_and_the_message_count(server: Server, stream: str) -> None:
    run(server, "append", stream, "--create", "application/json", "--close", stdin=b"1\n2\n")
    [found] = values(run(server, "--json", "info", stream))
    assert (found["status"], found["messages"]) == ("Closed", {"count": 2, "exact": True})
    lines = run(server, "info", stream).decode().splitlines()
    assert {"status            Closed", "messages          count 2  exact true"} < {*lines}
    assert not any({"{", "[", "null"} & {*line.split()} for line in lines)
    run(server, "create", f"{stream}/kept", "--ttl", str(2**53 - 1))
    assert b"after the year 9999\n" in run(server, "info", f"{stream}/kept")


def test_a_streams_life_from_create_to_delete(server: Server, stream: str) -> None:
    url = f"{server.base_url}/v1/stream/{stream}".replace(" ", "%20").replace("ü", "%C3%BC")
    for _ in range(2):  # what exists is as good
        [made] = values(run(server, "create", stream, "--ttl", "600", "--json"))
        assert made == {"url": url, "content_type": "text/plain"}
    run(server, "append", stream, "-", stdin=b"high\ntide")
    assert run("http://127.0.0.1:1", "cat", stream, "--url", server.base_url) == b"high\ntide"
    assert run(server, "close", stream) == f"closed at {9:016}\n".encode()
    [told] = values(run(server, "info", stream, "--json"))
    assert (told["tail_offset"], told["status"]) == (f"{9:016}", "Closed")
    assert b"409: " in run(server, "append", stream, stdin=b"x", status=1)
    run(server, "delete", stream)
    assert b"404" in run(server, "delete", stream, status=1)
    assert run(server, "delete", stream, "--missing-ok").endswith(b" does not exist\n")
    assert values(run(server, "delete", stream, "--missing-ok", "--json")) == [{"deleted": None}]
    assert b"Exit codes: 0" in run(server, "--help")


def test_all_streams_of_a_prefix_are_deleted_after_a_question(server: Server, stream: str) -> None:
    bucket = f"/b-{uuid.uuid4().hex[:8]}"
    httpx.put(server.base_url + bucket).raise_for_status()
    for begun in (f"{stream}/a", f"{bucket}/a"):
        for name in ("", " ü", "b"):
            run(server, "create", begun + (quote(name) if begun[0] == "/" else name))
        assert b"Delete 3 streams, " in run(server, "delete", begun, "--prefix", stdin=b"no\n", status=1)
        assert run(server, "delete", begun, "--prefix", "--yes") == b"3 streams are deleted\n"
        assert run(server, "delete", begun, "--prefix") == b"0 streams are deleted\n"


def test_a_stream_is_created_as_compacted_by_the_key_that_is_named(server: Server, stream: str) -> None:
    of_json = ("create", stream, "--content-type", "application/json")
    run(server, *of_json, "--compact-key", "/id", "--retain-seconds", "86400", "--retain-bytes", "1000")
    kept = httpx.head(f"{server.base_url}/v1/stream/{quote(stream)}").headers
    assert (kept["stream-retain-seconds"], kept["stream-retain-bytes"]) == ("86400", "1000")
    assert b"409" in run(server, *of_json, "--compact", status=1)
    assert b"compact           last-by-key" in run(server, "info", stream)
    refused = run(server, "create", f"{stream}/text", "--compact", status=1)
    assert b"Stream-Compact needs a stream of application/json" in refused


@pytest.mark.parametrize("data", [b'{"a": 1}', b"x" * 4_194_305], ids=["small", "uploaded"])
def test_a_snapshot_is_published_and_got_and_a_fork_begins_with_it(server: Server, data: bytes) -> None:
    bucket = f"/b-{uuid.uuid4().hex[:8]}"
    httpx.put(server.base_url + bucket).raise_for_status()
    run(server, "append", f"{bucket}/doc", "--create", "text/plain", stdin=b"high tide")
    at = f"{4:016}"
    run(server, "fork", f"{bucket}/doc", f"{bucket}/early", "--at", at)
    assert run(server, "cat", f"{bucket}/early") == b"high"
    arguments = ("--at", f"{9:016}", "--content-type", "text/x-folded")
    run(server, "snapshot", "publish", f"{bucket}/doc", *arguments, stdin=data)
    assert run(server, "snapshot", "get", f"{bucket}/doc") == data
    [told] = values(run(server, "snapshot", "get", f"{bucket}/doc", "--json"))
    assert told == {"offset": f"{9:016}", "content_type": "text/x-folded", "bytes": len(data)}
    assert run(server, "cat", f"{bucket}/doc") == b"", "the rest is no longer retained"
    assert b"404" in run(server, "snapshot", "get", f"{bucket}/none", status=1)
    assert b"two servers" in run(server, "fork", f"{bucket}/doc", "http://127.0.0.1:1/x/y", status=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("info", "no-such-stream"), "404: Stream does not exist"),
        (("cat", "no-such-stream", "--from", "-1"), "404: Stream does not exist"),
        (("append", "no/such"), "there is no such stream: no/such ("),
        (("cat", "no/such"), "); create it with `tidemark create no/such`"),
        (("info", "x", "--url", "localhost"), "'localhost' is not the URL of a server"),
        (("tail", "x", "--last", "1", "--from", "now"), "not both"),
        (("tail", "x", "--last", "0"), "--last"),
        (("tail", "x", "--before", "now"), "takes --last"),
        (("cat", "x", "--json", "--where", "a:eq:1"), "The pointer of where"),
        (("tail", "x", "--format", "%o %x"), "'%x' is unknown; use %o"),
        (("ls", "--bucket", "nothing-here"), "404: Bucket does not exist"),
        (("ls", "--bucket", "no"), "400: Bucket id must be"),
        (("ls", "--token", "a\nb"), "Error: the request cannot be sent: Illegal header value"),
        (("create", "x", "--content-type", "ü/ü€"), "is not ASCII, as a header is"),
        (("delete", "a/../b"), "Error: 'a/../b' must not have '.' or '..' between slashes"),
        (("token", "--hours", "inf"), "inf is not in the range 0<x<=1000000"),
        (("token", "--hours", "0"), "0.0 is not in the range 0<x<=1000000"),
        (("token", "--scopes", "read:v1 bogus"), "'bogus' is not a scope; one is read:v1, "),
        (("token", "--scopes", ""), "'' is not a scope"),
        (("tail", "x", "--from", "1 week"), "'1 week' is none of these: an offset, now, a time such as"),
        (("tail", "x", "--from", "2026-11-21"), "or how long ago (90s, 15m, 1h, 2d)"),
        (("tail", "x", "--json", "--format", "%o"), "Give --format or --json, not both"),
        (("archive", "--pattern", "x"), "pyiceberg is missing: install tidemark-streams[archive]"),
        (("completion", "tcsh"), "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)
def test_an_error_is_printed_without_traceback(server: Server, arguments: tuple[str, ...], said: str) -> None:
    status = 2 if {"tail", "localhost", "token", "completion"} & {*arguments} else 1
    printed = run(server, *arguments, status=status, AUTH_SECRET="s" * 32).decode()
    assert said in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        ({}, "does not answer"),
        ({"HTTP_PROXY": "http://a:b@127.0.0.1:{port}"}, "proxy of the environment, 127.0.0.1:{port}\n"),
        ({"ALL_PROXY": "http://127.0.0.1:{port}"}, "of the environment, http://127.0.0.1:{port}\n"),
        ({"ALL_PROXY": "socks5://127.0.0.1:{port}"}, "'socksio' package is not installed"),
        ({"ALL_PROXY": "http://[::1"}, "Error: Invalid port"),
        ({"HTTP_PROXY": "http://127.0.0.1:{port}", "NO_PROXY": "127.0.0.1"}, "Connection refused\n"),
    ],
)
def test_a_server_or_a_proxy_that_does_not_answer_is_named(proxy: dict[str, str], said: str) -> None:
    port = free_port()
    given = {name: value.replace("{port}", str(port)) for name, value in proxy.items()}
    printed = run(f"http://127.0.0.1:{free_port()}", "ls", stdin=b"", status=1, **given).decode()
    assert said.replace("{port}", str(port)) in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("arguments", "encoding", "said"),
    [
        (["ls"], "cp1252", r"\u65e5\u672c ü  open"),
        (["ls", "--json"], "cp1252", r'"\u65e5\u672c \u00fc"'),
        (["ls", "--json"], "utf8", '"日本 ü"'),
    ],
)
def test_an_output_that_has_not_every_character_gets_the_others(
    server: Server, arguments: list[str], encoding: str, said: str
) -> None:
    run(server, "create", "日本 ü")
    printed = run(server, *arguments, "日本", stdin=b"", PYTHONIOENCODING=encoding)
    assert said in printed.decode(encoding)


@pytest.mark.parametrize("command", ["ls >&-", "append x <&-", "cp - x <&-", "cat x >&-"])
def test_a_closed_input_or_output_is_an_error_without_a_traceback(server: Server, command: str) -> None:
    run(server, "append", "x", "--create", "text/plain", stdin=b"x")
    shell = ["sh", "-c", f"exec {sys.executable} -m tidemark.cli {command}"]
    environment = own_environment() | {"TIDEMARK_URL": server.base_url}
    ran = subprocess.run(shell, env=environment, stderr=subprocess.PIPE, timeout=240, check=False)
    assert (ran.returncode, ran.stderr) == (1, b"Error: The standard input or output is closed\n")


def written_command(folder: Path) -> str:
    """The PATH on which `tidemark` is found."""
    command = folder / "tidemark"
    command.write_text(
        f"#!{sys.executable}\nfrom tidemark.cli.__main__ import main\nmain(prog_name='tidemark')\n"
    )
    command.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_the_commands_of_the_guide_run_as_printed(server: Server, tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guides" / "command-line.md").read_text()
    [script] = re.findall(r"```sh\n(.*?)```", guide, re.DOTALL)
    found = {"PATH": written_command(tmp_path), "TIDEMARK_URL": server.base_url}
    ran = subprocess.run(
        ["bash", "-euc", script], env=os.environ | found, capture_output=True, text=True, check=True
    )
    lines = ran.stdout.splitlines()
    assert lines[0] == "2 messages"
    assert lines[1].startswith("chat/42  open  application/json")
    assert lines[-1] == '{"who": "b", "text": "low tide"}'
