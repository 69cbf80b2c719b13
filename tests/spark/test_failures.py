"""What a failed job says: one line with the cause, and an exit code that says whose turn it is."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from tests.spark.jobs import Jobs
from tests.spark.lakes import Lake
from tests.spark.serving import ThreadedServer
from tests.spark.streams import Streams, plan_here
from tests.support import JSON
from tidemark.spark import register
from tidemark.spark.failures import Exit, explain_failure
from tidemark.spark.http_client import ForbiddenHttpFault


@pytest.fixture
def refusing() -> Iterator[Any]:
    """A DynamoDB that refuses every call with the code that is set."""

    async def answer(_scope: Any, _receive: Any, send: Any) -> None:
        body = orjson.dumps({"__type": f"x#{server.code}", "message": "as AWS words it"})
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    server: Any = ThreadedServer(answer)
    with server:
        yield server


WHERE = {"subscribe": "a", "table": "a-table", "region": "eu-west-1"}


def explained(given: dict[str, str]) -> tuple[str, Exit]:
    """What is said where a read of these options is planned."""
    with pytest.raises(Exception, match="tidemark: ") as failed:
        plan_here(given)
    return explain_failure(failed.value)


@pytest.mark.usefixtures("services")
@pytest.mark.parametrize(
    ("code", "expected", "todo"),
    [
        ("ResourceNotFoundException", Exit.YOUR_INPUT, "is its name right"),
        ("AccessDeniedException", Exit.YOUR_RIGHTS, "allow dynamodb:"),
        ("ExpiredTokenException", Exit.YOUR_RIGHTS, "have expired"),
        ("InvalidSignatureException", Exit.YOUR_RIGHTS, "not valid there"),
        ("UnrecognizedClientException", Exit.YOUR_RIGHTS, "not valid there"),
    ],
)
def test_a_refusal_of_aws_names_action_and_table(refusing: Any, code: str, expected: Exit, todo: str) -> None:
    refusing.code = code
    line, exit_code = explained(WHERE | {"dynamodbEndpoint": refusing.url})
    assert line.startswith(f"DynamoDB GetItem of table a-table in eu-west-1 at {refusing.url}")
    assert all(words in line for words in (code, "as AWS words it", todo)), line
    assert exit_code == expected


def test_a_refusal_of_aws_is_the_last_line_of_a_job(jobs: Jobs, refusing: Any, tmp_path: Path) -> None:
    """Planned in a process of Spark's, which hands on a trace."""
    refusing.code = "AccessDeniedException"
    where = ["--table", "t", "--option", "region=r", "--option", f"dynamodbEndpoint={refusing.url}"]
    code, said, err = jobs.start("archive", *where, "--subscribe", "a", *Lake(tmp_path / "lake").given)
    assert (code, said) == (Exit.YOUR_RIGHTS, ""), err
    assert err.splitlines()[-1].startswith("archive: DynamoDB GetItem of table t in r at http://127.0.0.1:")


@pytest.mark.usefixtures("services")
def test_a_table_that_does_not_answer_is_told_so_and_worth_another_try() -> None:
    line, code = explained(WHERE | {"dynamodbEndpoint": "http://127.0.0.1:9"})
    assert line.startswith(
        "DynamoDB GetItem of table a-table in eu-west-1 at http://127.0.0.1:9 has no answer ("
    )
    assert (code, "producer headers" in line) == (Exit.TRY_AGAIN, False)


def test_a_bucket_that_does_not_exist_is_told_before_anything_is_read(streams: Streams) -> None:
    """No stream matches in it, and that would be a success with 0 messages."""
    none = {"bucket": "nobucket", "subscribePattern": ".*"}
    for given in (streams.by_table(**none), streams.by_http(**none)):
        line, code = explained(given)
        assert (line.partition(" (http")[0], code) == ("no such bucket: nobucket", Exit.YOUR_INPUT)


def test_a_row_that_the_server_would_refuse_is_named(jobs: Jobs, streams: Streams, tmp_path: Path) -> None:
    """And not the line of our source that found it."""
    streams.fill(content_type=JSON)
    (tmp_path / "in.txt").write_text('{"a":1}\nnot json\n')
    ingest = ["--url", streams.server.url, "--input", str(tmp_path / "in.txt"), "--format", "text"]
    ingest += ["--stream", streams.name, "--value-column", "value", "--staging", str(tmp_path / "s")]
    code, said, err = jobs.start("ingest", *ingest, "--id", streams.name)
    assert (code, said) == (Exit.YOUR_INPUT, "")
    assert err.splitlines()[-1].startswith("ingest: row 1 of partition 0: not JSON (")
    assert "b'not json'" in err


def test_register_warns_of_another_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker without this package says so in fifteen lines of Spark's, when the first query runs."""
    ours = tmp_path / "bin" / "python"
    for place in ("bin/python", "bin/python3", "other/python"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(ours))
    registered: list[Any] = []
    session = SimpleNamespace(
        dataSource=SimpleNamespace(register=registered.append),
        conf=SimpleNamespace(get=lambda _name, default: default),
        sparkContext=SimpleNamespace(pythonExec=""),
    )
    for name in ("bin/python", "bin/python3"):
        session.sparkContext.pythonExec = str(tmp_path / name)
        register(session)  # A warning is an error here.
    for name in ("other/python", "none/python"):
        session.sparkContext.pythonExec = str(tmp_path / name)
        with pytest.warns(match=f"with {tmp_path / name}, not with {ours}.*PYSPARK_PYTHON"):
            register(session)
    assert [source.name() for source in registered] == ["tidemark"] * 4


def java(*raised: str) -> RuntimeError:
    """An error of Java as Py4J words it."""
    trace = "\n\tat org.apache.spark.Some$.thing(Some.scala:53)\n"
    return RuntimeError(
        "An error occurred while calling o43.load.\n: " + f"{trace}Caused by: ".join(raised) + trace
    )


def without_message(raised: str) -> RuntimeError:
    """What ended a query, as PySpark has it where Java's error has no message."""
    fault = RuntimeError(f"{ENDED} SQLSTATE: XXKST\n=== Query")
    head = "StreamingQueryException: null\n\tat org.apache.spark.Some$.thing(Some.scala:53)\nCaused by: "
    fault._stackTrace = head + str(java(raised)).partition("\n: ")[2]  # type: ignore[attr-defined]
    return fault


SPARK = "org.apache.spark.SparkException"
#: The words of an error of Spark and of PySpark's wrapping of it.
LOST_TASK = (
    f"{SPARK}: Job aborted due to stage failure: Task 1 in stage 2.0 failed 1 times,"
    " most recent failure: Lost task 1.0 in stage 2.0 (TID 3) (192.0.2.2 executor driver): "
)
ENDED = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
CALLED_BACK = (
    "[FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: An exception was raised by the Python Proxy. Return"
    ' Message: Traceback (most recent call last):\n  File "a.py", line 644, in call\n'
    "py4j.protocol.Py4JJavaError: "
)
TRACED = """[STREAM_FAILED] Query x: Traceback (most recent call last):
  File "a.py", line 1, in f
    raise HttpFault(f"tidemark: {method}")
tidemark.spark.http_client.ForbiddenHttpFault: tidemark: GET http://h: 401 no token

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 1, in g
tidemark.spark.writer.publish.NotPublished: tidemark: s, append 0: no token
=== Streaming Query ===
"""
BOTO = "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling PutObject: no"
NO_FOOTER = (
    "[FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] Cannot read file:/a.json. Could not read footer.{}If not,"
    " convert it. SQLSTATE: KD001"
)
NO_SOURCE = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: jsn. SQLSTATE: 42K02"
CONCURRENT = "[STREAM_FAILED] x: [CONCURRENT_STREAM_LOG_UPDATE] Multiple jobs. SQLSTATE: 40000"
REST = "[UNSUPPORTED_FEATURE.X] Queries are disallowed when{}rest. SQLSTATE: 0A000"
RESET = "java.net.SocketException: Connection reset"

#: A Python process that ended as it started, as Spark tells it.
DIED = (
    "Error from python worker:\n{}PYTHONPATH was:\n  /a:/b\norg.apache.spark.SparkException: No port number"
)
TRACE_OF_DIED = (
    '  Traceback (most recent call last):\n    File "a.py", line 1, in f\n  OSError: no space left\n'
)

EXPLAINED: dict[str, tuple[BaseException, str, Exit]] = {
    "ours": (ForbiddenHttpFault("GET", "h", 401, "no\ntoken"), "GET h: 401 no token", Exit.YOUR_RIGHTS),
    "ours inside of Spark's": (RuntimeError(TRACED), "s, append 0: no token", Exit.YOUR_RIGHTS),
    "Python's": (ValueError("one\ntwo"), "one", Exit.FAILED),
    "no words": (KeyError(), "KeyError", Exit.FAILED),
    "a path": (PermissionError(13, "Denied", "/a"), "[Errno 13] Denied: '/a'", Exit.YOUR_RIGHTS),
    "boto's": (RuntimeError(f"x\nTraceback (most recent call last):\n  File a\n{BOTO}"), BOTO,
     Exit.YOUR_RIGHTS),
    "a cause of Java": (
     java(f"{SPARK}: Job aborted due to stage failure: Task 0 failed 1 times",
          f"{SPARK}: Exception thrown in awaitResult: ", f"{SPARK}: {NO_FOOTER}".format("\n"),
          "java.lang.RuntimeException: file:/a.json is not a Parquet file"),
     NO_FOOTER.format(" "), Exit.YOUR_INPUT),
    "a class": (java(f"a.SparkClassNotFoundException: {NO_SOURCE}", "java.lang.ClassNotFoundException: jsn"),
     NO_SOURCE, Exit.YOUR_INPUT),
    "a file system": (
     java('org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3x"'),
     'No FileSystem for scheme "s3x"', Exit.YOUR_INPUT),
    "a directory": (java("java.io.IOException: mkdir of /a failed"), "mkdir of /a failed", Exit.FAILED),
    "a host": (java("java.net.ConnectException: Call to b:9 failed"), "Call to b:9 failed", Exit.TRY_AGAIN),
    "two queries": (RuntimeError(CONCURRENT), CONCURRENT, Exit.TRY_AGAIN),
    "Spark's own": (ValueError(f"{REST};\n'Project".format("\n")), REST.format(" "), Exit.FAILED),
    "a dead daemon": (java(f"{SPARK}: \n" + DIED.format(TRACE_OF_DIED)), "OSError: no space left",
     Exit.FAILED),
    "a Python without pyspark": (java(f"{SPARK}: \n" + DIED.format("  python3: No module named pyspark\n")),
     "a Python process of Spark cannot start: python3: No module named pyspark", Exit.FAILED),
    "a query's": (without_message("java.lang.NullPointerException"), "java.lang.NullPointerException",
     Exit.FAILED),
}  # fmt: skip


@pytest.mark.parametrize("case", EXPLAINED)
def test_an_error_is_told_by_its_cause_and_not_by_sparks_words(case: str) -> None:
    fault, line, code = EXPLAINED[case]
    assert explain_failure(fault) == (line, code)


EXITED = "Python worker exited unexpectedly"
CRASHED = f"{EXITED} (crashed). Consider setting 'spark.python.worker.faulthandler.enabled'"
NO_PORT = (
    "EOFException occurred while reading the port number from pyspark.daemon's stdout and terminated"
    " with code: 137"
)
NO_LAUNCH = "Python daemon failed to launch worker"
EOF = "java.io.EOFException"
#: What PySpark said when a worker, or the daemon that makes them, was killed at one moment or another.
KILLED: list[tuple[BaseException, str]] = [
    (java(f"{LOST_TASK}{EOF}"), EOF),
    (java(EOF), EOF),
    (java(f"{SPARK}: {CRASHED}"), CRASHED),
    (java("java.net.SocketException: Broken pipe"), "Broken pipe"),
    (java(f"java.lang.IllegalStateException: {NO_LAUNCH}."), f"{NO_LAUNCH}."),
    (java(f"{SPARK}: {NO_PORT}.."), f"{NO_PORT}.."),
    (java(f"{SPARK}: Writing job failed.", RESET), "Connection reset"),
    (RuntimeError(f"{ENDED}{CRASHED} SQLSTATE: XXKST\n=== Query"), f"{ENDED}{CRASHED} SQLSTATE: XXKST"),
    (RuntimeError(f"{ENDED}{java(EOF)} SQLSTATE: XXKST"), EOF),
    (without_message(EOF), EOF),
    (RuntimeError(f"{ENDED}{CALLED_BACK}{java(f'{LOST_TASK}{EOF}')} SQLSTATE: XXKST"), EOF),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "words"), KILLED)
def test_a_job_whose_python_worker_was_killed_may_try_again(fault: Exception, words: str) -> None:
    assert explain_failure(fault) == (words, Exit.TRY_AGAIN)
