"""The jobs with their lake in S3, by Hadoop's own file system: `make tests3a`."""

import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.infra.test_pipeline import JOB_STATEMENTS, texts_in
from tests.spark.hadoop_s3a import JARS, lead_to
from tests.spark.recorder import Recorder
from tests.spark.streams import Start, filled, key
from tests.support import JSON, World

pytestmark = pytest.mark.skipif(
    not JARS, reason="Hadoop's S3A is not here: `make tests3a` fetches it (180 MB) and runs these"
)


@pytest.fixture
def lake(services: Any, spark: Any) -> Iterator[tuple[str, Recorder]]:
    """A bucket, and what the JVM asks of it."""
    bucket = f"lake-{uuid.uuid4().hex[:10]}"
    services.create_bucket(bucket)
    with Recorder(os.environ["AWS_ENDPOINT_URL_S3"]) as recorder:
        lead_to(spark, recorder.url)
        yield bucket, recorder


def test_every_job_with_its_lake_in_s3(
    start: Start,
    where: list[str],
    spark: Any,
    world: World,
    server: Any,
    name: str,
    lake: tuple[str, Recorder],
    tmp_path: Path,
) -> None:
    """Archive, replay, ingest and stats, each a second time: Parquet, JSON and staging, all of them in one
    bucket. And what was asked of the bucket is what the role allows."""
    bucket, recorder = lake
    root = f"s3a://{bucket}"
    filled(world, f"{name}-a", b'[{"key":1},{"key":2}]', b'{"key":1,"n":2}', content_type=JSON)
    filled(world, f"{name}-b", bytes(range(256)) * 400)
    both = ["--pattern", f"{name}-."]
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"{root}/tables"}
    catalog |= {"s3.endpoint": os.environ["AWS_ENDPOINT_URL_S3"]}
    given = [f"--catalog-property={name}={value}" for name, value in catalog.items()]
    table = ["--iceberg", "lake.messages", *given]
    archive = ["archive", *where, *both, *table]
    assert "messages=4" in start(*archive)[1]
    world.process().append(key(f"{name}-a"), b"[3]", content_type=JSON)
    assert "messages=1" in start(*archive)[1]
    assert "messages=0" in start(*archive)[1]
    process, staging = world.process(), ["--staging", f"{root}/staging"]
    for kind in ("a", "b"):
        replay = ["replay", "--url", server.url, *table, "--stream", f"{name}-{kind}"]
        for _ in range(2):
            code, _, err = start(*replay, "--to", f"{name}-{kind}2", *staging, "--id", f"{name}{kind}")
            assert code == 0, err
        assert process.read_all(key(f"{name}-{kind}2")) == process.read_all(key(f"{name}-{kind}"))
    spark.range(100).write.mode("overwrite").parquet(f"{root}/staging/in")
    ingest = ["ingest", "--url", server.url, "--input", f"{root}/staging/in"]
    ingest += ["--stream", f"{name}-in", "--create"]
    for _ in range(2):
        code, _, err = start(*ingest, *staging, "--id", name)
        assert code == 0, err
    stored = orjson.loads(b"[" + process.read_all(key(f"{name}-in"))[:-1] + b"]")
    assert sorted(row["id"] for row in stored) == list(range(100))
    counted = [*table, "--out", f"{root}/stats/t"]
    for _ in range(2):
        code, said, err = start("stats", *where, *both, *counted)
        assert (code, f"{name}-a" in said) == (0, True), err
    assert spark.read.json(f"{root}/stats/t").count() == 2
    judge(bucket, recorder)


def judge(bucket: str, recorder: Recorder) -> None:
    """Of the JVM's requests; the jobs' own for staging are in `test_role.py`."""
    allowed = {
        action: [pattern.replace("${Lake.Arn}", bucket) for pattern in texts_in(statement["Resource"])]
        for statement in (JOB_STATEMENTS[sid] for sid in ("Lake", "KeepInLake", "KeepTable"))
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }
    asked = {(action, place) for action, place in recorder.seen if "/" in place}
    refused = {(action, place) for action, place in asked if not is_allowed(place, allowed.get(action, []))}
    assert refused == set()
    assert recorder.actions(bucket) - {"s3:AbortMultipartUpload"} == {
        "s3:ListBucket",
        "s3:GetObject",
        "s3:PutObject",
        "s3:DeleteObject",
    }


def is_allowed(place: str, patterns: list[str]) -> bool:
    return any(re.fullmatch(".*".join(map(re.escape, each.split("*"))), place) for each in patterns)
