"""What a failed job says: one line with the cause, and an exit code that says whose turn it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.spark.serving import ThreadedServer
from tests.spark.streams import filled
from tests.support import JSON, World
from tidemark.spark.clients.http import ForbiddenHttpFault
from tidemark.spark.failures import Exit, explain_failure

Start = Callable[..., tuple[int, str, str]]

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
    action = "GetItem" if job == "ingest" else "BatchGetItem"
    assert last.startswith(f"{job}: DynamoDB {action} of table a-table in eu-west-1 at {refusing.url}"), last
    assert code in last
    assert "as AWS words it" in last
    assert todo in last


def test_a_table_that_does_not_answer_is_told_so_and_worth_another_try(start: Start) -> None:
    where = ["--table", "t", "--option", "region=r", "--option", "dynamodbEndpoint=http://127.0.0.1:9"]
    code, _, err = start("stats", *where, "--subscribe", "a")
    assert code == Exit.TRY_AGAIN
    assert "DynamoDB BatchGetItem of table t in r at http://127.0.0.1:9 has no answer (" in err
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
