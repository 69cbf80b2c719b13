"""What the jobs ask of AWS in a recorded run is what pipeline/template.yaml allows, no less and no more."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.infra.test_pipeline import JOB_STATEMENTS
from tests.spark.lakes import Lake
from tests.spark.recorder import Recorder
from tests.support import World
from tidemark.service.append import INLINE_BYTES
from tidemark.spark.http_client import HttpClient
from tidemark.spark.options import ConnectionOptions

#: Granted, and yet not asked for in a run in which nothing goes wrong.
ONLY_WHEN = {("KeepInLake", "s3:AbortMultipartUpload"): "a large file could not be uploaded"}


@pytest.fixture(scope="module")
def recorded() -> Iterator[tuple[Recorder, Recorder]]:
    """Before DynamoDB, and before S3."""
    with (
        Recorder(os.environ["AWS_ENDPOINT_URL_DYNAMODB"]) as tables,
        Recorder(os.environ["AWS_ENDPOINT_URL_S3"]) as objects,
    ):
        yield tables, objects


LAKE = "a-lake"
BUCKET = "recorded"
Run = Callable[..., None]


@pytest.fixture
def run(succeed: Run, where: list[str], recorded: tuple[Recorder, Recorder]) -> Run:
    """Runs a job that must succeed, through the recorders."""
    tables, objects = recorded
    through = ["--option", f"dynamodbEndpoint={tables.url}", "--option", f"s3Endpoint={objects.url}"]

    return lambda name, *arguments: succeed(name, *where, "--bucket", BUCKET, *through, *arguments)


@pytest.fixture
def succeed(start: Callable[..., tuple[int, str, str]]) -> Run:
    def run_job(name: str, *arguments: str) -> None:
        code, _, err = start(name, *arguments)
        assert code == 0, err

    return run_job


def test_the_jobs_role_allows_what_they_ask_for_and_nothing_else(
    spark: Any,
    world: World,
    server: Any,
    services: Any,
    recorded: tuple[Recorder, Recorder],
    run: Run,
    succeed: Run,
    tmp_path: Path,
) -> None:
    """Every job, twice where it goes on from what it did; bodies of every size. The table is only read:
    streams are written over HTTP."""
    services.create_bucket(LAKE)
    _, objects = recorded
    web, root, json = (
        HttpClient(ConnectionOptions(retry_seconds=5)),
        f"{server.url}/{BUCKET}",
        {"Content-Type": "application/json"},
    )
    web.request("PUT", root)
    large = [orjson.dumps({"key": f"k{index}", "text": "x" * (INLINE_BYTES + 1)}) for index in range(70)]
    for name, bodies in (("small", [b'{"key":1}', b'{"key":2}']), ("large", large)):
        web.request("PUT", f"{root}/{name}", headers=json)
        for body in bodies:
            web.request("POST", f"{root}/{name}", headers=json, body=body)
    lake, every = Lake(tmp_path / "lake"), ["--pattern", ".*"]
    archive = ["archive", *every, *lake.given]
    for _ in range(2):
        run(*archive)
        web.request("POST", f"{root}/small", headers=json, body=b'{"key":3}')
    run("stats", "--subscribe", "small,large", *lake.given)
    staging = ["--staging", f"s3://{LAKE}/staging"]
    over_http = ["--url", server.url, "--bucket", BUCKET, "--option", f"s3Endpoint={objects.url}"]
    succeed(
        "replay",
        *over_http,
        *lake.given,
        "--from-bucket",
        BUCKET,
        "--stream",
        "large",
        "--to",
        "again",
        *staging,
        "--id",
        "r",
    )
    spark.range(3).write.json(str(tmp_path / "lines"))
    ingest = ["ingest", "--input", str(tmp_path / "lines"), "--format", "json", "--stream", "in", "--create"]
    succeed(*ingest, *over_http, *staging, "--id", "i")
    judge(recorded, world)


def judge(recorded: tuple[Recorder, Recorder], world: World) -> None:
    """Statement by statement: what was asked for on its resources against what it allows."""
    tables, objects = recorded
    asked = {
        "Log": tables.actions("table"),
        "Bodies": objects.actions(f"{world.bucket_name}/"),
        "KeepInLake": objects.actions(f"{LAKE}/staging") - {"s3:GetObject"},
    }
    for sid, actions in asked.items():
        granted = set(JOB_STATEMENTS[sid]["Action"])
        assert actions <= granted, f"{sid}: asked for, and refused once deployed"
        idle = {action for action in granted - actions if (sid, action) not in ONLY_WHEN}
        assert idle == set(), f"{sid}: granted, and never asked for"
    # And what else was asked for is allowed by one of the others.
    assert objects.actions(world.bucket_name) == asked["Bodies"], "the bucket of bodies is not listed"
    assert objects.actions(LAKE) - asked["KeepInLake"] <= {"s3:GetObject", "s3:ListBucket"}
