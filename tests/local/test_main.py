"""`python -m tidemark.local` for a person: one line when it is ready, a clean end, clear errors."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest

from tests.authorization.tokens import SECRET, token
from tests.available import require_engine
from tests.local.conftest import write_function
from tests.local.polling import children_of, is_running, wait_until
from tidemark.engine.database import Database
from tidemark.engine.table import EmbeddedTable
from tidemark.log.schema import FORMAT_EPOCH, encode_format
from tidemark.server.ports import free_port, listening_socket, port_of

DEADLINE_SECONDS = 60
#: The system of another project directory, started as `python -m tidemark.local` starts its own.
IN_PROJECT = """
import os, sys
from pathlib import Path
from tidemark.local.__main__ import main
code = main(Path(sys.argv[1]))
sys.stdout.flush()
os._exit(code)
"""


class System:
    """A running `python -m tidemark.local`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.line = process.stdout.readline()
        found = re.search(r"http://\S+", self.line)
        self.address = urlsplit(found[0]).netloc if found else ""

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=DEADLINE_SECONDS)
        try:
            connection.request(
                method, path, body, {name.replace("_", "-"): headers[name] for name in headers}
            )
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """The exit code, the rest of standard output, and standard error."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str, str]:
        return outcome(self.process)


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit code, standard output, and standard error."""
    out, err = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, out, err


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a system in an empty working directory, on any free port; kills what still runs at the end."""
    require_engine()
    with ExitStack() as stack:

        def starting(*, project: Path | None = None, **environment: str) -> subprocess.Popen[str]:
            command = ["-m", "tidemark.local"] if project is None else ["-c", IN_PROJECT, str(project)]
            inherited = {
                name: value
                for name, value in os.environ.items()
                if not name.startswith("AWS_") and name != "ALLOW_ANONYMOUS"
            }
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=tmp_path,
                env={**inherited, "PORT": "0", **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield starting


@pytest.fixture(params=["asgi", "lambda"])
def via(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_prints_one_ready_line_serves_and_ends_cleanly(start: Start, tmp_path: Path, via: str) -> None:
    """From an empty directory, with defaults only."""
    system = System(start(VIA=via))
    what = {
        "asgi": r"\(data in \.data\)",
        "lambda": r"\(via lambda; data in \.data/lambda\)",
    }
    assert re.fullmatch(rf"Tidemark is ready at http://127\.0\.0\.1:\d+ {what[via]}\n", system.line)
    assert system.request("GET", "/v1/health")[0] == 200
    assert system.request("PUT", "/v1/stream/tides", b"high", content_type="text/plain")[0] == 201
    children = children_of(system.process.pid)
    assert system.end() == (0, "", "")
    assert not any(is_running(child) for child in children)
    files = {
        "asgi": {"lock", "tidemark.db", "blobs", "url-key"},
        "lambda": {"lambda"},
    }
    assert {path.name for path in (tmp_path / ".data").iterdir()} == files[via]
    assert bool(children) == (via == "lambda"), "the server is one process"


def test_the_table_is_also_served_in_dynamodbs_protocol(start: Start, via: str) -> None:
    """As boto3 speaks it, beside requests over HTTP. The handlers' S3 has a port of its own."""
    port, s3_port = free_port(), free_port()
    system = System(start(VIA=via, DYNAMODB_PORT=str(port), S3_PORT=str(s3_port)))
    assert system.request("PUT", "/v1/stream/tides", b"high", content_type="text/plain")[0] == 201
    secret = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
    with closing(
        boto3.client("dynamodb", "us-east-1", endpoint_url=f"http://127.0.0.1:{port}", **secret)
    ) as client:
        assert client.list_tables()["TableNames"] == ["tidemark"]
        [stream] = [
            item for item in client.scan(TableName="tidemark")["Items"] if item["sk"]["S"] == "stream/tides"
        ]
        assert stream["ct"] == {"S": "text/plain"}
        with pytest.raises(client.exceptions.ResourceNotFoundException):
            client.scan(TableName="another")
    if via == "lambda":
        with closing(
            boto3.client("s3", "us-east-1", endpoint_url=f"http://127.0.0.1:{s3_port}", **secret)
        ) as client:
            assert [each["Name"] for each in client.list_buckets()["Buckets"]] == ["tidemark-blobs"]
    system.address = f"127.0.0.1:{port}"
    asked = {"X_Amz_Target": "DynamoDB_20120810.ListTables", "Host": "evil.example"}
    status, answer = system.request("POST", "/", b"{}", **asked)
    assert (status, b"loopback names alone" in answer) == (400, True), (
        "no page has this port by DNS rebinding"
    )
    assert system.end() == (0, "", "")


def test_with_authorization_each_change_is_an_audit_line(start: Start, via: str) -> None:
    """As a function's log has it, and with the time: what was done and what was refused, but no appends."""
    system = System(start(VIA=via, AUTH_SECRET=SECRET))
    writer = {"Authorization": f"Bearer {token('write:v1 read:v1', sub='ada')}"}
    for method, path, status in (
        ("PUT", "/v1/stream/a", 201),
        ("POST", "/v1/stream/a", 204),
        ("DELETE", "/v1/stream/a", 403),
    ):
        assert system.request(method, path, b"x", Content_Type="text/plain", **writer)[0] == status
    code, _, err = system.end()
    lines = re.findall(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ audit (.*)$", err, re.MULTILINE)
    told = [json.loads(line) for line in lines]
    assert [(each["method"], each["path"], each["status"], each["subject"]) for each in told] == [
        ("PUT", "/v1/stream/a", 201, "ada"),
        ("DELETE", "/v1/stream/a", 403, "ada"),
    ]
    assert (code, err.count("audit")) == (0, 2)


def test_without_keys_it_has_its_own_names_and_takes_writes_of_its_own_pages(start: Start, via: str) -> None:
    system = System(start(VIA=via, ALLOW_ANONYMOUS="http://box.lan:4437"))
    for method, path, headers, status in (
        ("PUT", "/v1/stream/a", {}, 201),
        ("PUT", "/v1/stream/b", {"Origin": f"http://{system.address}"}, 201),
        ("PUT", "/v1/stream/c", {"Host": "box.lan:4437", "Origin": "http://box.lan:4437"}, 201),
        ("PUT", "/v1/stream/d", {"Origin": "http://localhost:5173"}, 403),
        ("GET", "/v1/stream/a", {"Origin": "http://localhost:5173"}, 200),
        ("GET", "/v1/stream/a", {"Host": "evil.example"}, 421),
        ("GET", "/v1/stream/a?live=sse&offset=-1", {"Host": "evil.example"}, 421),
        ("GET", "/v1/health", {"Host": "10.0.0.7"}, 200),
    ):
        assert system.request(method, path, b"", Content_Type="text/plain", **headers)[0] == status, (
            path,
            headers,
        )
    assert system.end()[0] == 0


def test_by_default_a_failed_request_is_one_line_with_the_reason(start: Start, via: str) -> None:
    """A successful request prints nothing."""
    system = System(start(VIA=via))
    assert system.request("PUT", "/v1/stream/tides", b"high", content_type="text/plain")[0] == 201
    assert system.request("GET", "/v1/stream/missing?offset=-1")[0] == 404
    code, out, err = system.end()
    assert (code, out) == (0, "")
    assert re.fullmatch(r"\S+ GET /v1/stream/missing 404 \d+ ms, 0 B in, \d+ B out: .*not exist.*\n", err), (
        err
    )


def test_at_level_info_every_request_is_one_line(start: Start, via: str) -> None:
    system = System(start(VIA=via, LOG_LEVEL="INFO"))
    assert system.request("PUT", "/v1/stream/tides", b"high", content_type="text/plain")[0] == 201
    assert system.request("GET", "/v1/stream/tides?offset=-1") == (200, b"high")
    code, out, err = system.end()
    assert (code, out) == (0, "")
    put, get = err.splitlines()
    assert re.fullmatch(r"\S+ PUT /v1/stream/tides 201 \d+ ms, 4 B in, 0 B out, offset \d+", put)
    assert re.fullmatch(r"\S+ GET /v1/stream/tides 200 \d+ ms, 0 B in, 4 B out, offset \d+", get)


def test_streams_survive_kill_9_of_everything(start: Start, via: str) -> None:
    """A small body and one in S3; the system starts again on its data."""
    first = System(start(VIA=via))
    assert first.request("PUT", "/v1/stream/small", b"high", content_type="text/plain")[0] == 201
    large = b"tide" * 100_000
    assert first.request("PUT", "/v1/stream/large", large, content_type="text/plain")[0] == 201
    for child in children_of(first.process.pid):
        os.kill(child, signal.SIGKILL)
    first.process.kill()
    first.wait()
    second = System(start(VIA=via))
    assert second.request("GET", "/v1/stream/small?offset=-1") == (200, b"high")
    assert second.request("GET", "/v1/stream/large?offset=-1") == (200, large)
    assert second.end()[0] == 0


def test_different_names_are_different_streams(start: Start, via: str) -> None:
    """Also names that an HTTP API confuses: `VIA=lambda` has the edge by default."""
    system = System(start(VIA=via, LOG_LEVEL="ERROR"))
    names = ["a", "a%3Fb", "a%23b", "100%25", "a%253Fb", "a%20b"]
    for name in names:
        assert system.request("PUT", f"/v1/stream/{name}", name.encode(), content_type="text/plain")[0] == 201
    assert system.request("DELETE", "/v1/stream/a%3Fb")[0] == 204
    left = {name: system.request("GET", f"/v1/stream/{name}") for name in names}
    assert left.pop("a%3Fb")[0] == 404
    assert left == {name: (200, name.encode()) for name in left}
    for bad in ("a%zz", "a%FF", "a%2Fb"):
        assert system.request("GET", f"/v1/stream/{bad}")[0] == 400
    assert system.end()[0] == 0


def test_a_body_of_four_mebibytes_of_any_characters_is_accepted(start: Start, via: str) -> None:
    """Also of quotes and control characters, which take two and six bytes each in an event as text."""
    system = System(start(VIA=via, LOG_LEVEL="ERROR"))
    size = 4 * 1024 * 1024
    for name, body, content_type in (
        ("quotes", b'"' * size, "text/plain"),
        ("controls", b"\1" * size, "text/plain"),
        ("json", b'"' + b"\\n" * (size // 2 - 1) + b'"', "application/json"),
    ):
        path = f"/v1/stream/{name}"
        assert system.request("PUT", path, content_type=content_type)[0] == 201
        status, answer = system.request("POST", path, body, content_type=content_type)
        assert (status, answer) == (204, b"")
        status, answer = system.request("POST", path, body + b" ", content_type=content_type)
        assert (status, f"at most {size} bytes" in answer.decode()) == (413, True)
    assert system.end()[0] == 0


def test_an_ipv6_address_is_served(start: Start, via: str) -> None:
    """Its colons are in the Host header of every request, first of all that of the health check."""
    system = System(start(VIA=via, HOST="::1"))
    assert re.match(r"Tidemark is ready at http://\[::1\]:\d+ ", system.line), system.line
    assert system.request("PUT", "/v1/stream/six", Content_Type="text/plain")[0] == 201
    assert system.request("GET", "/v1/stream/six")[0] == 200
    assert system.end() == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_open_event_stream_does_not_delay_the_end(start: Start, number: int) -> None:
    """The reader gets a complete response, not a broken connection; nothing logs a traceback."""
    system = System(start(SSE_SECONDS="600"))
    assert system.request("PUT", "/v1/stream/tides", b"high", content_type="text/plain")[0] == 201
    reader = http.client.HTTPConnection(system.address, timeout=DEADLINE_SECONDS)
    reader.request("GET", "/v1/stream/tides?offset=-1&live=sse")
    answer = reader.getresponse()
    assert answer.readline().startswith(b"event:")
    system.process.send_signal(number)
    answer.read()
    reader.close()
    assert system.wait() == (0, "", "")


WAITING = """
import os, threading

def handler(event, context):
    if event["rawPath"] == "/wait":
        open("waiting", "w").close()
        threading.Event().wait()
    return {"statusCode": 200, "body": "ok"}
"""


def test_a_waiting_handler_does_not_delay_the_end(start: Start, project: Path, tmp_path: Path) -> None:
    write_function(project, "probe", WAITING)
    system = System(start(project=project, VIA="lambda"))
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(system.request("GET", "/wait")[0]))
    waiting.start()
    wait_until((tmp_path / "waiting").exists, "the request's arrival")
    code, out, err = system.end()
    waiting.join()
    assert (code, out, answers) == (0, "", [503])
    assert "Traceback" not in err


def test_a_webhook_that_does_not_answer_does_not_delay_the_end(start: Start) -> None:
    """Nor does what it was about write to a database that is closed."""
    with listening_socket("127.0.0.1", 0) as receiver:
        system = System(start())
        url = f"http://127.0.0.1:{port_of(receiver)}/"
        asked = json.dumps({"type": "webhook", "pattern": "tides/*", "webhook": {"url": url}}).encode()
        path = "/v1/stream/__ds/subscriptions/hook"
        assert system.request("PUT", path, asked, content_type="application/json")[0] == 201
        assert system.request("PUT", "/v1/stream/tides/1", b"high", content_type="text/plain")[0] == 201
        receiver.settimeout(DEADLINE_SECONDS)
        called, _ = receiver.accept()
        code, out, err = system.end()
        called.close()
    assert (code, out) == (0, "")
    assert "Traceback" not in err


def test_ctrl_c_reaches_the_engines_only_through_the_system(start: Start) -> None:
    """A terminal sends SIGINT to the whole process group, but the engines must outlive the last request."""
    system = System(start(VIA="lambda"))
    os.killpg(system.process.pid, signal.SIGINT)
    assert system.wait() == (0, "", "")


def test_sigint_during_the_start_ends_it_cleanly(start: Start, tmp_path: Path) -> None:
    process = start()
    wait_until((tmp_path / ".data/lock").exists, "the data directory")
    process.send_signal(signal.SIGINT)
    code, out, err = outcome(process)
    assert code == 0
    assert "Traceback" not in err
    assert out == "" or out.startswith("Tidemark is ready")


def test_an_emulator_that_dies_ends_the_system(start: Start) -> None:
    """Without it large bodies cannot be acknowledged, so the system says so and ends."""
    system = System(start(VIA="lambda"))
    [child] = children_of(system.process.pid)
    os.kill(child, signal.SIGKILL)
    code, out, err = system.wait()
    assert (code, out) == (1, "")
    [line] = [line for line in err.splitlines() if "was ended by signal 9" in line]
    assert line.endswith("; stopping")
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["PORT", "DYNAMODB_PORT", "S3_PORT"])
def test_a_taken_port_is_one_line(start: Start, tmp_path: Path, name: str) -> None:
    with listening_socket("127.0.0.1", 0) as taken:
        port = port_of(taken)
        code, out, err = outcome(start(VIA="asgi" if name == "PORT" else "lambda", **{name: str(port)}))
    assert (code, out) == (1, "")
    refused = f"port {port} on 127.0.0.1 cannot be used: Address already in use"
    assert err == f"tidemark: {refused}{'; choose another HOST or PORT' if name == 'PORT' else ''}\n"
    assert name != "PORT" or not (tmp_path / ".data").exists()


def test_a_data_directory_that_cannot_be_made_is_named_in_one_line(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = tmp_path / "file" / "data"
    code, out, err = outcome(start(DATA_DIR=str(directory)))
    assert (code, out) == (1, "")
    assert err == f"tidemark: {directory} cannot be used: Not a directory; choose another DATA_DIR\n"


def test_a_data_directory_that_this_version_does_not_read_is_one_line(start: Start, tmp_path: Path) -> None:
    """Of an earlier version, of a later one, of another program, and damaged: each is left as it was."""
    earlier, later, other, damaged = (tmp_path / name for name in ("earlier", "later", "other", "damaged"))
    (earlier / "dynamodb").mkdir(parents=True)
    damaged.mkdir()
    table = EmbeddedTable(Database(damaged / "tidemark.db"))
    table.put(encode_format(FORMAT_EPOCH))
    table.database.operate(lambda db: db.execute("UPDATE items SET crc = 0").rowcount, writes=True)
    table.database.close()
    for directory, statement in (
        (later, "PRAGMA user_version = 99"),
        (other, "CREATE TABLE of_others (x)"),
    ):
        directory.mkdir()
        with sqlite3.connect(directory / "tidemark.db") as db:
            db.execute(statement)
    for directory, reason in (
        (earlier, "is of an earlier version, whose data this one does not read"),
        (later, "was written by a later version of Tidemark: its format is 99"),
        (other, "is a database of another program"),
        (damaged, "cannot be used: a row is damaged .* 'format .': it does not fit its checksum; "),
    ):
        code, out, err = outcome(start(DATA_DIR=str(directory)))
        assert (code, out) == (1, "")
        assert re.fullmatch(rf"tidemark: {directory}.*{reason}.*\n", err)


def test_a_data_directory_in_use_is_one_line(start: Start) -> None:
    first = System(start())
    code, out, err = outcome(start())
    assert (code, out) == (1, "")
    assert re.fullmatch(
        rf"tidemark: \.data is in use by process {first.process.pid}: stop it, .*DATA_DIR\n", err
    )
    assert first.request("GET", "/v1/health")[0] == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [("VIA", "sam"), ("PORT", "http"), ("JANITOR_SECONDS", "soon"), ("LONG_POLL_SECONDS", "long")],
)
def test_an_invalid_value_is_one_line(start: Start, name: str, value: str) -> None:
    code, out, err = outcome(start(**{name: value}))
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"tidemark: {name} must be .*\n", err)


def test_a_function_that_does_not_load_is_one_line(start: Start, project: Path) -> None:
    write_function(project, "probe", "import no_such_module\n")
    code, out, err = outcome(start(project=project, VIA="lambda"))
    assert (code, out) == (1, "")
    assert re.fullmatch(r"tidemark: Probe .* does not load: ModuleNotFoundError.*\n", err)


def test_the_janitor_runs_on_its_schedule_and_its_failures_are_not_fatal(
    start: Start, project: Path, tmp_path: Path
) -> None:
    """It gets EventBridge's event, fails, and runs again."""
    code = """
import json

def handler(event, context):
    with open("rounds", "a") as rounds:
        print(json.dumps([event["source"], event["detail-type"], context.function_name]), file=rounds)
    raise RuntimeError("the tide is in")
"""
    write_function(project, "sweeper", code)
    system = System(start(project=project, VIA="lambda", JANITOR_SECONDS="0.05"))
    rounds = tmp_path / "rounds"
    wait_until(lambda: rounds.exists() and len(rounds.read_text().splitlines()) >= 2, "two rounds")
    assert system.request("GET", "/")[0] == 200
    returncode, _, err = system.end()
    assert returncode == 0
    assert "RuntimeError: the tide is in" in err
    assert set(rounds.read_text().splitlines()) == {'["aws.events", "Scheduled Event", "Sweeper"]'}


def test_it_listens_only_on_the_given_address(start: Start) -> None:
    try:
        listening_socket("::1", 0).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    system = System(start(HOST="::1"))
    assert "http://[::1]:" in system.line
    assert system.request("GET", "/v1/health")[0] == 200
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(
            ("127.0.0.1", int(system.address.rsplit(":", 1)[1])), timeout=DEADLINE_SECONDS
        )


def test_a_server_that_is_too_old_for_its_table_ends_with_one_line(
    start: Start, tmp_path: Path, via: str
) -> None:
    path = tmp_path / {"asgi": "tidemark.db", "lambda": "lambda/tables/tidemark.db"}[via]
    path.parent.mkdir(parents=True, exist_ok=True)
    EmbeddedTable(Database(path)).put(encode_format(FORMAT_EPOCH + 1))
    code, out, err = outcome(start(VIA=via, DATA_DIR=str(tmp_path)))
    assert (code, out) == (1, "")
    assert re.findall("too old for the stored data", err) == ["too old for the stored data"]
    assert "Traceback" not in err
