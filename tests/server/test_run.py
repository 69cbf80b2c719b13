"""`make run` for a person: one line when it is ready, a clean end, clear errors."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from subprocess import PIPE
from urllib.parse import urlsplit

import pytest

from tests.authorization.tokens import SECRET, token
from tests.available import require_engine
from tests.conformance.servers import COMMANDS, ROOT, own_environment
from tests.processes import children_of, is_running
from tests.waiting import until
from tidemark.engine.database import Database
from tidemark.engine.table import EmbeddedTable
from tidemark.log.schema import FORMAT_EPOCH, encode_format
from tidemark.server.ports import listening_socket, port_of

pytestmark = pytest.mark.slow

DEADLINE_SECONDS = 60
TEXT = {"Content-Type": "text/plain"}


class System:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.line = process.stdout.readline()
        found = re.search(r"http://\S+", self.line)
        self.address = urlsplit(found[0]).netloc if found else ""

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] = TEXT
    ) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection(self.address, timeout=DEADLINE_SECONDS)) as connection:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """The exit code, the rest of standard output, and standard error."""
        self.process.send_signal(number)
        return outcome(self.process)


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit code, standard output, and standard error."""
    out, err = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, out, err


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a system in an empty working directory, on any free port; kills what still runs at the end."""
    with ExitStack() as stack:
        yield starting_in(tmp_path, stack)


def starting_in(directory: Path, stack: ExitStack) -> Start:
    require_engine()

    def starting(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        way = COMMANDS.get(environment.get("VIA", ""), COMMANDS["asgi"])
        own = {"PYTHONPATH": str(ROOT), "PORT": "0", "ALLOW_ANONYMOUS": ""}
        command, env = [sys.executable, "-m", *way, *arguments], own_environment() | own | environment
        process = subprocess.Popen(
            command, cwd=directory, env=env, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True
        )
        stack.enter_context(process)
        stack.callback(process.kill)
        return process

    return starting


@pytest.fixture(params=["asgi", "lambda"], scope="module")
def via(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- a system that runs -------------------------------------------------------------------


@pytest.fixture(scope="module")
def system(via: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One that has a name of its own, and no keys."""
    with ExitStack() as stack:
        start = starting_in(tmp_path_factory.mktemp("system"), stack)
        running = System(start(VIA=via, LOG_LEVEL="ERROR", ALLOW_ANONYMOUS="http://box.lan:4437"))
        yield running
        assert running.end() == (0, "", "")


def test_without_keys_it_has_its_own_names_and_takes_writes_of_its_own_pages(system: System) -> None:
    for method, path, headers, status in (
        ("PUT", "/v1/stream/1", {}, 201),
        ("PUT", "/v1/stream/2", {"Origin": f"http://{system.address}"}, 201),
        ("PUT", "/v1/stream/3", {"Host": "box.lan:4437", "Origin": "http://box.lan:4437"}, 201),
        ("PUT", "/v1/stream/4", {"Origin": "http://localhost:5173"}, 403),
        ("GET", "/v1/stream/1", {"Origin": "http://localhost:5173"}, 200),
        ("GET", "/v1/stream/1", {"Host": "evil.example"}, 421),
        ("GET", "/v1/stream/1?live=sse&offset=-1", {"Host": "evil.example"}, 421),
        ("GET", "/v1/health", {"Host": "10.0.0.7"}, 200),
    ):
        assert system.request(method, path, headers=TEXT | headers)[0] == status, (path, headers)


@pytest.mark.parametrize(
    ("given", "way"), [("", "asgi"), ("asgi", "asgi"), ("sam", "asgi"), ("lambda", "lambda")]
)
def test_make_run_starts_the_command_tidemark_serve_or_the_imitation_of_aws(given: str, way: str) -> None:
    dry = ["make", "--dry-run", "--no-print-directory", "--assume-old=.venv/.installed-local", "run"]
    printed = subprocess.check_output(dry, cwd=ROOT, env=os.environ | {"VIA": given}, text=True)
    assert printed.splitlines()[-1].endswith(f"/python -m {' '.join(COMMANDS[way])}")


def test_the_server_imports_nothing_of_the_tests_nor_what_only_they_install(start: Start) -> None:
    """As `make run` starts it: a clone's folder is where Python looks for modules."""
    system = System(start(PYTHONPROFILEIMPORTTIME="1"))
    assert system.request("PUT", "/v1/stream/1")[0] == 201
    code, _, err = system.end()
    modules = re.findall(r"^import time:.*\| +(\S+)$", err, re.MULTILINE)
    assert (code, "tidemark.server.serve" in modules) == (0, True)
    others = {"benchmarks", "boto3", "botocore", "moto", "ministack", "tests", "yaml"}
    assert others.isdisjoint(each.partition(".")[0] for each in modules)


# --- what it says, and what it leaves ------------------------------------------------------


def test_it_prints_one_ready_line_serves_and_ends_cleanly(start: Start, tmp_path: Path, via: str) -> None:
    """From an empty directory, with defaults only. A failed request is one line with the reason, and a
    successful one prints nothing."""
    system = System(start(VIA=via))
    where = {"asgi": r"data in \.data", "lambda": r"via lambda; data in \.data/lambda"}[via]
    assert re.fullmatch(rf"Tidemark is ready at http://127\.0\.0\.1:\d+ \({where}\)\n", system.line)
    assert system.request("GET", "/v1/health")[0] == 200
    assert system.request("PUT", "/v1/stream/tides", b"high")[0] == 201
    assert system.request("GET", "/v1/stream/missing?offset=-1")[0] == 404
    children = children_of(system.process.pid)
    code, out, err = system.end()
    assert (code, out) == (0, "")
    line = r"\S+ GET /v1/stream/missing 404 \d+ ms, 0 B in, \d+ B out: .*not exist.*\n"
    assert re.fullmatch(line, err), err
    assert not any(is_running(child) for child in children)
    assert bool(children) == (via == "lambda"), "the server is one process"
    files = {"asgi": {"lock", "tidemark.db", "blobs", "url-key"}, "lambda": {"lambda"}}
    assert {path.name for path in (tmp_path / ".data").iterdir()} == files[via]


def test_on_an_ipv6_address_with_authorization_each_change_is_an_audit_line(start: Start, via: str) -> None:
    """As a function's log has it, and with the time: what was done and what was refused, but no appends. At
    level INFO each request is a line, too. The address's colons are in the Host header of every request; no
    other address is listened on."""
    try:
        listening_socket("::1", 0).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    system = System(start(VIA=via, HOST="::1", AUTH_SECRET=SECRET, LOG_LEVEL="INFO"))
    assert "http://[::1]:" in system.line
    writer = TEXT | {"Authorization": f"Bearer {token('write:v1 read:v1', sub='ada')}"}
    for method, status in (("PUT", 201), ("POST", 204), ("DELETE", 403)):
        assert system.request(method, "/v1/stream/a", b"x", writer)[0] == status
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(system.address.rsplit(":", 1)[1])))
    code, _, err = system.end()
    lines = re.findall(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ audit (.*)$", err, re.MULTILINE)
    told = [json.loads(line) for line in lines]
    assert [(each["method"], each["path"], each["status"], each["subject"]) for each in told] == [
        ("PUT", "/v1/stream/a", 201, "ada"),
        ("DELETE", "/v1/stream/a", 403, "ada"),
    ]
    assert (code, err.count("audit")) == (0, 2)
    logged = re.findall(r" (\w+) /v1/stream/a (\d+) \d+ ms, ", err)
    assert logged == [("PUT", "201"), ("POST", "204"), ("DELETE", "403")]


# --- its end --------------------------------------------------------------------------------


def test_neither_an_open_event_stream_nor_a_webhook_that_does_not_answer_delays_the_end(start: Start) -> None:
    """The reader gets a complete response, not a broken connection. Nothing is written to a database that is
    closed, and nothing logs a traceback."""
    with listening_socket("127.0.0.1", 0) as receiver:
        system = System(start(SSE_SECONDS="600"))
        url = f"http://127.0.0.1:{port_of(receiver)}/"
        asked = json.dumps({"type": "webhook", "pattern": "tides/*", "webhook": {"url": url}}).encode()
        path, headers = "/v1/stream/__ds/subscriptions/hook", {"Content-Type": "application/json"}
        assert system.request("PUT", path, asked, headers)[0] == 201
        assert system.request("PUT", "/v1/stream/tides/1", b"high")[0] == 201
        receiver.settimeout(DEADLINE_SECONDS)
        called, _ = receiver.accept()
        reader = http.client.HTTPConnection(system.address, timeout=DEADLINE_SECONDS)
        reader.request("GET", "/v1/stream/tides/1?offset=-1&live=sse")
        answer = reader.getresponse()
        assert answer.readline().startswith(b"id:")
        system.process.send_signal(signal.SIGINT)
        answer.read()
        reader.close()
        code, out, err = outcome(system.process)
        called.close()
    assert (code, out) == (0, "")
    assert "Traceback" not in err


def test_sigint_during_the_start_ends_it_cleanly(start: Start, tmp_path: Path) -> None:
    process = start()
    until((tmp_path / ".data/lock").exists)
    process.send_signal(signal.SIGINT)
    code, out, err = outcome(process)
    assert code == 0
    assert "Traceback" not in err
    assert out == "" or out.startswith("Tidemark is ready")


# --- what keeps it from starting is one line ----------------------------------------------


def test_a_taken_port_is_one_line(start: Start, tmp_path: Path) -> None:
    with listening_socket("127.0.0.1", 0) as taken:
        port = port_of(taken)
        code, out, err = outcome(start(PORT=str(port)))
    assert (code, out) == (1, "")
    reason = "Address already in use; choose another HOST or PORT"
    assert err == f"tidemark: port {port} on 127.0.0.1 cannot be used: {reason}\n"
    assert not (tmp_path / ".data").exists()


def a_file(data: Path) -> None:
    data.touch()


def damaged(data: Path) -> None:
    data.mkdir()
    table = EmbeddedTable(Database(data / "tidemark.db"))
    table.put(encode_format(FORMAT_EPOCH))
    table.database.operate(lambda db: db.execute("UPDATE items SET crc = 0").rowcount, writes=True)
    table.database.close()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (a_file, "cannot be used: .*; choose another DATA_DIR"),
        (damaged, ".*cannot be used: a row is damaged .* 'format .': it does not fit its checksum; .*"),
    ],
)
def test_a_data_directory_that_cannot_be_used_is_one_line(
    start: Start, tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    directory = tmp_path / "data"
    make(directory)
    code, out, err = outcome(start(DATA_DIR=str(directory)))
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"tidemark: {directory}.*{reason}\n", err), err


def test_a_data_directory_in_use_is_one_line(start: Start, via: str) -> None:
    first = System(start(VIA=via))
    code, out, err = outcome(start(VIA=via))
    assert (code, out) == (1, "")
    said = rf"tidemark: \S*\.data\S* is in use by process {first.process.pid}: stop it, .*DATA_DIR\n"
    assert re.fullmatch(said, err)
    assert first.request("GET", "/v1/health")[0] == 200


@pytest.mark.parametrize(("name", "value"), [("VIA", "sam"), ("PORT", "http"), ("LONG_POLL_SECONDS", "long")])
def test_an_invalid_value_is_one_line(start: Start, name: str, value: str) -> None:
    code, out, err = outcome(start(**{name: value}))
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"tidemark: {name} must be .*\n", err)


def test_a_server_too_old_for_its_table_ends_with_one_line(start: Start, tmp_path: Path, via: str) -> None:
    path = tmp_path / {"asgi": "tidemark.db", "lambda": "lambda/tables/tidemark.db"}[via]
    path.parent.mkdir(parents=True, exist_ok=True)
    EmbeddedTable(Database(path)).put(encode_format(FORMAT_EPOCH + 1))
    code, out, err = outcome(start(VIA=via, DATA_DIR=str(tmp_path)))
    assert (code, out) == (1, "")
    assert re.findall("too old for the stored data", err) == ["too old for the stored data"]
    assert "Traceback" not in err
