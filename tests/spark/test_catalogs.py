"""The Iceberg table in the catalogs of AWS: Glue's and a REST service, both as ministack emulates them, with
the table's files in its S3. pyarrow writes them in Spark's place, whose way to S3 is a jar."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from tests.infra.test_pipeline import JOB_STATEMENTS
from tests.spark.recorder import Recorder
from tidemark.local.emulators import Ministack, environment_for
from tidemark.spark import lake, lake_files
from tidemark.spark.lake import ClosedStream, LakeTable
from tidemark.spark.side_tables import Reach

REGION = "us-east-1"
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def emulator(services: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    """Started after the services, whose credentials it takes."""
    engine = Ministack({"glue", "s3", "s3tables"}, None, tmp_path_factory.mktemp("catalogs") / "log")
    engine.start()
    engine.wait_until_ready()
    yield engine
    engine.child.stop()


def client(emulator: Ministack, service: str) -> Any:
    return boto3.client(service, endpoint_url=emulator.endpoint, region_name=REGION)


@pytest.fixture(params=["glue", "rest"])
def properties(request: pytest.FixtureRequest, emulator: Ministack, name: str) -> Mapping[str, str]:
    """As a job is given them by --catalog-property."""
    credentials = os.environ | environment_for({}, os.environ)
    given = {
        "s3.endpoint": emulator.endpoint,
        "s3.region": REGION,
        "s3.access-key-id": credentials["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": credentials["AWS_SECRET_ACCESS_KEY"],
    }
    if request.param == "rest":
        bucket = client(emulator, "s3tables").create_table_bucket(name=name)
        return given | {"type": "rest", "uri": f"{emulator.endpoint}/iceberg", "warehouse": bucket["arn"]}
    client(emulator, "s3").create_bucket(Bucket=name)
    glue = {"type": "glue", "glue.endpoint": emulator.endpoint, "glue.region": REGION}
    return given | glue | {"warehouse": f"s3://{name}/tables"}


@pytest.fixture
def identifier(name: str) -> str:
    return f"{name.replace('-', '_')}.messages"


@pytest.fixture
def table(properties: Mapping[str, str], identifier: str) -> LakeTable:
    made = LakeTable("default", properties, identifier)
    made.ensure()
    return made


@pytest.fixture(autouse=True)
def write_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """By pyarrow in Spark's place. Each file has one message."""
    monkeypatch.setattr(lake, "write_files", write_file)
    monkeypatch.setattr(lake, "read_files", lambda _spark, files: files)
    monkeypatch.setattr(lake, "measure_reach", lambda files: [REACH] * bool(files))


REACH = {"bucket": "v1", "stream": "s", "incarnation": "", "first": 0, "last": 1}


class Rows:
    """A batch of one message, in the place of a data frame."""

    sparkSession = None  # noqa: N815 - Spark's name

    def __init__(self, value: bytes) -> None:
        self.value = value

    def selectExpr(self, *_: str) -> Rows:  # noqa: N802 - Spark's name
        return self


def write_file(rows: Rows, table: Table, name: str) -> list[str]:
    place = f"{table.location()}/data/{name}/part-{os.urandom(4).hex()}.parquet"
    row = {
        "bucket": "v1",
        "stream": "s",
        "offset": f"{0:016}",
        "time": datetime.now(UTC),
        "value": rows.value,
    }
    columns = pa.schema(list(table.schema().as_arrow())).remove_metadata()
    with table.io.new_output(place).create() as file:
        pq.write_table(pa.Table.from_pylist([row], columns), file)
    return [place]


def values(table: LakeTable) -> list[bytes]:
    return sorted(table.load().scan().to_arrow().column("value").to_pylist())


CLOSED = [ClosedStream("v1", name, "i", f"{7:016}", "text/plain") for name in ("a", "b")]


def test_a_batch_is_in_the_table_once_and_a_run_that_has_nothing_to_do_writes_nothing(
    table: LakeTable,
) -> None:
    """A file of metadata for each run would be there for ever."""
    for query, batch, value in [("q", 0, b"1"), ("q", 0, b"again"), ("q", 1, b"2"), ("other", 0, b"3")]:
        table.write_batch(Rows(value), query, batch)
    assert values(table) == [b"1", b"2", b"3"]
    assert table.reach(None, table.load(), "v1") == {("s", ""): Reach(0, 1)}
    for streams in (CLOSED[:1], CLOSED):
        table.add_closed(streams)
    scheme, authority, directory = PyArrowFileIO.parse_location(table.load().location())
    files = PyArrowFileIO(table.load().io.properties).fs_by_scheme(scheme, authority)
    here = FileSelector(directory.rpartition("/")[0], recursive=True)
    before = {each.path for each in files.get_file_info(here)}
    table.ensure()
    table.add_closed(CLOSED)
    assert {each.path for each in files.get_file_info(here)} == before
    assert sorted(table.closed_streams("v1"), key=lambda each: each.stream) == CLOSED
    assert table.closed_streams("v1", "b") == CLOSED[1:]


@pytest.mark.parametrize("faster", [("q", 0), ("other", 0)], ids=["the same batch", "another batch"])
def test_of_two_that_commit_at_once_one_looks_again(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch, faster: tuple[str, int]
) -> None:
    """Between a commit's look and itself another one commits. pyiceberg must not repeat it by itself: it does
    not know that the batch may be there by now."""
    others = [lambda: LakeTable.write_batch(table, Rows(b"faster"), *faster)]
    is_committed = lake._is_committed

    def look(found: Table, query: str, batch: int) -> bool:
        answer = is_committed(found, query, batch)
        if looks.pop(0) == "before the commit" and others:
            others.pop()()
        return answer

    # The first look comes before the files are written; the other one's two looks come inside the second.
    looks = ["first", "before the commit", "", "", "", ""]
    monkeypatch.setattr(lake, "_is_committed", look)
    table.write_batch(Rows(b"slower"), "q", 0)
    assert values(table) == ([b"faster"] if faster == ("q", 0) else [b"faster", b"slower"])


def test_a_table_that_somebody_else_made_gets_what_is_missing(
    properties: Mapping[str, str], identifier: str
) -> None:
    """The columns of this version, and that pyiceberg repeats no commit."""
    catalog = load_catalog("default", **properties)
    catalog.create_namespace(identifier.partition(".")[0])
    old = Schema(*lake_files.SCHEMA.fields[:-1])
    catalog.create_table(identifier, old, partition_spec=lake._PARTITIONS)
    table = LakeTable("default", properties, identifier)
    table.ensure()
    table.write_batch(Rows(b"1"), "q", 0)
    assert table.load().schema().column_names == lake_files.SCHEMA.column_names
    assert table.load().properties["commit.retry.num-retries"] == "0"
    assert values(table) == [b"1"]


# ministack's REST service does not know the update that removes snapshots, and does nothing.
@pytest.mark.parametrize("properties", ["glue"], indirect=True)
def test_a_batch_is_recognised_after_its_snapshot_has_expired(table: LakeTable) -> None:
    for batch in range(3):
        table.write_batch(Rows(b"%d" % batch), "q", batch)
    assert table.expire(datetime.now(UTC) + DAY) == (2, 0)
    table.write_batch(Rows(b"again"), "q", 1)
    assert values(table) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("properties", ["glue"], indirect=True)
def test_the_pipelines_role_allows_what_a_table_asks_for_and_nothing_else(
    properties: Mapping[str, str], emulator: Ministack, identifier: str
) -> None:
    with Recorder(emulator.endpoint) as recorder:
        through = dict.fromkeys(("glue.endpoint", "s3.endpoint"), recorder.url)
        table = LakeTable("default", {**properties, **through}, identifier)
        for batch in range(2):
            table.ensure()
            table.write_batch(Rows(b"x"), "q", batch)
            table.add_closed(CLOSED[batch : batch + 1])
        loaded, later = table.load(), datetime.now(UTC) + DAY
        # As after a compaction: a file that only an older snapshot has.
        with loaded.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
            overwrite.delete_data_file(next(iter(loaded.scan().plan_files())).file)
        assert table.expire(later)[1] == 1
        table.compact_sides(later)
    assert recorder.actions("catalog") == set(JOB_STATEMENTS["Catalog"]["Action"])
    bucket = properties["warehouse"].removeprefix("s3://").partition("/")[0]
    for_files = recorder.actions(bucket) - {"s3:GetObject", "s3:ListBucket"}
    # A file that is too large for one request may fail in the middle.
    assert for_files | {"s3:AbortMultipartUpload"} == set(JOB_STATEMENTS["KeepTable"]["Action"])
    kept = {place.partition("/")[2] for action, place in recorder.seen if action == "s3:PutObject"}
    assert kept
    assert all(key.startswith("tables/") for key in kept)
