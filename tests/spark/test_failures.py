"""What a failed job says: one line with the cause, and an exit code that says whose turn it is."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.spark.serving import ThreadedServer
from tests.spark.streams import Start, filled
from tests.support import JSON, World
from tidemark.spark import register
from tidemark.spark.clients.http import ForbiddenHttpFault
from tidemark.spark.failures import Exit, explain_failure, repeat_slow_start

REFUSALS = {
    "ResourceNotFoundException": (Exit.YOUR_INPUT, "is its name right"),
    "AccessDeniedException": (Exit.YOUR_RIGHTS, "allow dynamodb:"),
    "ExpiredTokenException": (Exit.YOUR_RIGHTS, "have expired"),
    "InvalidSignatureException": (Exit.YOUR_RIGHTS, "not valid there"),
    "UnrecognizedClientException": (Exit.YOUR_RIGHTS, "not valid there"),
}


@pytest.fixture
def refusing() -> Iterator[Any]:
    """A DynamoDB that refuses every call with the code that is set."""

    async def answer(_scope: Any, _receive: Any, send: Any) -> None:
        body = orjson.dumps({"__type": f"x#{server.code}", "message": "as AWS words it"})
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    server: Any = ThreadedServer(answer)
    server.code = "ResourceNotFoundException"
    with server:
        yield server


@pytest.mark.parametrize("python", ["here", "beside", "elsewhere", "nowhere"])
def test_register_tells_of_workers_with_another_python(
    spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: str
) -> None:
    """A worker without this package says so in fifteen lines of Spark's, when the first query runs."""
    for place in ("bin", "other"):
        (tmp_path / place).mkdir()
        for name in ("python", "python3"):
            (tmp_path / place / name).symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    names = {"here": "bin/python", "beside": "bin/python3", "elsewhere": "other/python", "nowhere": "none/p"}
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / names[python]))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        register(spark)
    monkeypatch.undo()
    register(spark)  # What is registered goes on with the Python of that moment.
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    said = [str(each.message) for each in told if "PYSPARK_PYTHON" in str(each.message)]
    assert len(said) == (python in ("elsewhere", "nowhere"))
    for text in said:
        assert f"with {tmp_path / names[python]}, not with {sys.executable}" in text


@pytest.mark.parametrize(
    ("job", "code"),
    [
        *(("stats", code) for code in REFUSALS),
        ("archive", "AccessDeniedException"),
        ("ingest", "ResourceNotFoundException"),
    ],
)
def test_a_refusal_of_aws_is_told_with_code_action_table_and_region(
    start: Start, spark: Any, refusing: Any, tmp_path: Path, job: str, code: str
) -> None:
    """Where a read is planned, where a streaming query is, and where a write is."""
    refusing.code = code
    spark.range(3).write.json(str(tmp_path / "in"))
    arguments = {
        "stats": ["--subscribe", "a"],
        "archive": ["--subscribe", "a", "--out", str(tmp_path / "o"), "--checkpoint", str(tmp_path / "c")],
        "ingest": [
            *("--input", str(tmp_path / "in"), "--format", "json", "--stream", "a", "--id", "x"),
            *("--staging", str(tmp_path / "s")),
        ],
    }[job]
    where = ["--table", "a-table", "--option", "region=eu-west-1"]
    where += ["--option", f"dynamodbEndpoint={refusing.url}"]
    exit_code, said, err = start(job, *where, *arguments)
    expected, todo = REFUSALS[code]
    last = err.splitlines()[-1]
    assert (exit_code, said) == (expected, ""), err
    assert last.startswith(f"{job}: DynamoDB GetItem of table a-table in eu-west-1 at {refusing.url}"), last
    assert code in last
    assert "as AWS words it" in last
    assert todo in last


def test_a_table_that_does_not_answer_is_told_so_and_worth_another_try(start: Start) -> None:
    where = ["--table", "t", "--option", "region=r", "--option", "dynamodbEndpoint=http://127.0.0.1:9"]
    code, _, err = start("stats", *where, "--subscribe", "a")
    assert code == Exit.TRY_AGAIN
    assert "DynamoDB GetItem of table t in r at http://127.0.0.1:9 has no answer (" in err
    assert "producer headers" not in err
    assert len(err.splitlines()) == 1


def test_a_row_that_the_server_would_refuse_is_named(
    start: Start, spark: Any, server: ThreadedServer, world: World, name: str, tmp_path: Path
) -> None:
    """And not the line of our source that found it."""
    filled(world, name, content_type=JSON)
    (tmp_path / "in.txt").write_text('{"a":1}\nnot json\n')
    ingest = ["--url", server.url, "--input", str(tmp_path / "in.txt"), "--format", "text", "--stream", name]
    ingest += ["--value-column", "value", "--staging", str(tmp_path / "s"), "--id", name]
    code, said, err = start("ingest", *ingest)
    assert (code, said) == (Exit.YOUR_INPUT, "")
    assert err.splitlines()[-1].startswith("ingest: row 1 of partition 0: not JSON (")
    assert "b'not json'" in err


@pytest.mark.parametrize("over_http", [False, True])
def test_a_bucket_that_does_not_exist_is_told_before_anything_is_read(
    start: Start, server: ThreadedServer, where: list[str], tmp_path: Path, over_http: bool
) -> None:
    """No stream matches in it, and that would be a success with 0 messages."""
    connection = ["--url", server.url] if over_http else where
    archive = ["--pattern", ".*", "--out", str(tmp_path / "o"), "--checkpoint", str(tmp_path / "c")]
    code, said, err = start("archive", *connection, "--bucket", "nobucket", *archive)
    assert (code, said) == (Exit.YOUR_INPUT, "")
    assert err.splitlines()[-1] == "archive: no such bucket: nobucket"


def test_an_error_is_found_inside_of_what_spark_makes_of_it() -> None:
    traced = (
        "[STREAM_FAILED] Query x: Traceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n'
        '    raise HttpFault(f"tidemark: {method}")\n'
        "tidemark.spark.clients.http.ForbiddenHttpFault: tidemark: GET http://h: 401 no token\n"
        "\nThe above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "b.py", line 1, in g\n'
        "tidemark.spark.writer.publish.NotPublished: tidemark: s, append 0: no token\n"
        "=== Streaming Query ===\n"
    )
    assert explain_failure(RuntimeError(traced)) == ("s, append 0: no token", Exit.YOUR_RIGHTS)
    assert explain_failure(ValueError("one\ntwo")) == ("one", Exit.FAILED)
    assert explain_failure(KeyError()) == ("KeyError", Exit.FAILED)
    forbidden = ForbiddenHttpFault("GET", "http://h", 401, "no\ntoken")
    assert explain_failure(forbidden) == ("GET http://h: 401 no token", Exit.YOUR_RIGHTS)
    boto = (
        "x\nTraceback (most recent call last):\n  File a\nbotocore.exceptions.ClientError: An error occurred "
        "(AccessDenied) when calling the PutObject operation: no"
    )
    assert explain_failure(RuntimeError(boto))[1] == Exit.YOUR_RIGHTS


def java(*raised: str) -> RuntimeError:
    """An error of Java as Py4J words it."""
    trace = "\n\tat org.apache.spark.Some$.thing(Some.scala:53)\n"
    return RuntimeError(
        "An error occurred while calling o43.load.\n: " + f"{trace}Caused by: ".join(raised) + trace
    )


@pytest.mark.parametrize(
    ("fault", "line", "code"),
    [
        (
            java(
                "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 1 times",
                "org.apache.spark.SparkException: Exception thrown in awaitResult: ",
                "org.apache.spark.SparkException: [FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] "
                "Cannot read file:/a.json. Could not read footer.\nIf not, convert it. SQLSTATE: KD001",
                "java.lang.RuntimeException: file:/a.json is not a Parquet file",
            ),
            (
                "[FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] "
                "Cannot read file:/a.json. Could not read footer. If not, convert it. SQLSTATE: KD001"
            ),
            Exit.YOUR_INPUT,
        ),
        (
            java(
                "org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the "
                "data source: jsn. SQLSTATE: 42K02",
                "java.lang.ClassNotFoundException: jsn.DefaultSource",
            ),
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: jsn. SQLSTATE: 42K02",
            Exit.YOUR_INPUT,
        ),
        (
            java('org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3x"'),
            'No FileSystem for scheme "s3x"',
            Exit.YOUR_INPUT,
        ),
        (
            java("java.io.IOException: mkdir of file:/proc/a failed"),
            "mkdir of file:/proc/a failed",
            Exit.FAILED,
        ),
        (
            java("java.net.ConnectException: Call From a to b:9 failed: refused"),
            "Call From a to b:9 failed: refused",
            Exit.TRY_AGAIN,
        ),
        (
            RuntimeError("[STREAM_FAILED] x: [CONCURRENT_STREAM_LOG_UPDATE] Multiple jobs. SQLSTATE: 40000"),
            "[STREAM_FAILED] x: [CONCURRENT_STREAM_LOG_UPDATE] Multiple jobs. SQLSTATE: 40000",
            Exit.TRY_AGAIN,
        ),
        (
            PermissionError(13, "Permission denied", "/a"),
            "[Errno 13] Permission denied: '/a'",
            Exit.YOUR_RIGHTS,
        ),
        (
            ValueError(
                "[UNSUPPORTED_FEATURE.X] Queries are disallowed when\nrest. SQLSTATE: 0A000;\n'Project"
            ),
            "[UNSUPPORTED_FEATURE.X] Queries are disallowed when rest. SQLSTATE: 0A000",
            Exit.FAILED,
        ),
    ],
)
def test_an_error_of_java_is_told_by_its_cause_and_not_by_py4js_words(
    fault: Exception, line: str, code: Exit
) -> None:
    assert explain_failure(fault) == (line, code)


def killed(*raised: str, speaks: str = "api.python.PythonWorkerFactory.create") -> RuntimeError:
    """An error of Java whose trace has the part of Spark that speaks to Python."""
    trace = (
        f"\n\tat java.base/java.io.DataInputStream.readInt(D.java:386)\n\tat org.apache.spark.{speaks}(P:195)"
    )
    return RuntimeError(
        "An error occurred while calling o1.save.\n: " + f"{trace}\nCaused by: ".join(raised) + trace
    )


LOST_TASK = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 2.0 failed 1 times,"
    " most recent failure: Lost task 1.0 in stage 2.0 (TID 3) (192.0.2.2 executor driver): "
)
CRASHED = (
    "Python worker exited unexpectedly (crashed). Consider setting 'spark.python.worker.faulthandler.enabled'"
)
ENDED = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
CALLED_BACK = (
    "[FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: An exception was raised by the Python Proxy. Return"
    ' Message: Traceback (most recent call last):\n  File "a.py", line 644, in call\n'
    "py4j.protocol.Py4JJavaError: "
)


def without_message(raised: str) -> RuntimeError:
    """What ended a query, as PySpark has it where Java's error has no message."""
    fault = RuntimeError(f"{ENDED} SQLSTATE: XXKST\n=== Query")
    head = "StreamingQueryException: null\n\tat org.apache.spark.Some$.thing(Some.scala:53)\nCaused by: "
    fault._stackTrace = head + str(killed(raised)).partition("\n: ")[2]  # type: ignore[attr-defined]
    return fault


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (killed(f"{LOST_TASK}java.io.EOFException"), "java.io.EOFException"),
        (killed("java.io.EOFException"), "java.io.EOFException"),
        (
            killed(
                f"org.apache.spark.SparkException: {CRASHED}", speaks="sql.execution.python.P.runInPython"
            ),
            "Python worker exited unexpectedly",
        ),
        (killed("java.io.IOException: Stream closed"), "Stream closed"),
        (killed("java.net.SocketException: Broken pipe"), "Broken pipe"),
        (
            killed("java.lang.IllegalStateException: Python daemon failed to launch worker."),
            "Python daemon failed to launch worker",
        ),
        (
            killed(
                "org.apache.spark.SparkException: EOFException occurred while reading the port number from"
                " pyspark.daemon's stdout and terminated with code: 137.."
            ),
            (
                "EOFException occurred while reading the port number from pyspark.daemon's stdout"
                " and terminated with code: 137"
            ),
        ),
        (
            killed(
                "org.apache.spark.SparkException: Writing job failed.",
                "java.net.SocketException: Connection reset",
            ),
            "Connection reset",
        ),
        (RuntimeError(f"{ENDED}{CRASHED} SQLSTATE: XXKST\n=== Query"), "Python worker exited unexpectedly"),
        (RuntimeError(f"{ENDED}Connection reset SQLSTATE: XXKST\n=== Query"), "Connection reset"),
        (RuntimeError(f"{ENDED}{killed('java.io.EOFException')} SQLSTATE: XXKST"), "java.io.EOFException"),
        (without_message("java.io.EOFException"), "java.io.EOFException"),
        (
            RuntimeError(f"{ENDED}{CALLED_BACK}{killed(f'{LOST_TASK}java.io.EOFException')} SQLSTATE: XXKST"),
            "java.io.EOFException",
        ),
    ],
)
def test_a_job_whose_python_worker_was_killed_says_so_and_to_try_again(fault: Exception, words: str) -> None:
    """Each of these is what PySpark said when a worker, or the daemon that makes them, was killed at one
    moment or another."""
    line = f"a Python worker of Spark died ({words}), perhaps for want of memory: try again"
    assert explain_failure(fault) == (line, Exit.TRY_AGAIN)


def test_a_connection_to_another_than_python_that_was_cut_is_told_as_it_was() -> None:
    fault = java("java.net.SocketException: Connection reset")
    assert explain_failure(fault) == ("Connection reset", Exit.TRY_AGAIN)
    assert explain_failure(java("java.io.EOFException")) == ("java.io.EOFException", Exit.FAILED)
    without = without_message("java.lang.NullPointerException")
    assert explain_failure(without) == ("java.lang.NullPointerException", Exit.FAILED)


def test_a_query_starts_again_where_python_is_slow_to_start() -> None:
    """Nothing was read then. Any other failure, or one of this kind when the time is over, is raised."""
    from pyspark.errors import StreamingQueryException

    slow = StreamingQueryException(message="[STREAM_FAILED] … Python worker failed to connect back. SQLSTATE")
    told: list[str] = []

    def take(*faults: Exception | None, seconds: float = 600) -> int:
        left = list(faults)

        def run() -> int:
            fault = left.pop(0)
            if fault is not None:
                raise fault
            return 3

        return repeat_slow_start(run, seconds, told.append)

    assert take(slow, slow, None) == 3
    assert [text.endswith("the query starts again") for text in told] == [True, True]
    with pytest.raises(StreamingQueryException, match="other"):
        take(StreamingQueryException(message="other"), None)
    with pytest.raises(StreamingQueryException, match="failed to connect back"):
        take(slow, None, seconds=-1)
    assert explain_failure(slow)[1] == Exit.TRY_AGAIN
