"""The Iceberg table in the catalogs of AWS: Glue's and a REST service, both as ministack emulates them, with
the table's files in its S3. pyarrow writes them in Spark's place, whose way to S3 is a jar."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import boto3
import pytest
from pyarrow.fs import FileSelector
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema

from tests.faults.proxy import Proxy, Reply, Sent
from tests.infra.test_pipeline import JOB_STATEMENTS
from tests.spark.lakes import add_message
from tests.spark.recorder import Recorder
from tests.stack.emulators import Ministack, environment_for
from tidemark.spark import lake
from tidemark.spark.lake import LakeTable
from tidemark.spark.reach import ArchiveBatch, Reach, Reaches, reaches_of

REGION = "us-east-1"


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


def values(table: LakeTable) -> list[bytes]:
    return sorted(table.load().scan().to_arrow().column("value").to_pylist())


def test_a_batch_is_in_the_table_once_and_its_repetition_leaves_no_file(table: LakeTable) -> None:
    """One for each run would be there for ever."""
    assert [add_message(table, number, b"%d" % number) for number in (0, 0, 1, 1)] == [True, False] * 2
    assert values(table) == [b"0", b"1"]
    assert reaches_of(table.load()) == {("v1", "s", ""): Reach(f"{0:016}", f"{2:016}")}
    scheme, authority, directory = PyArrowFileIO.parse_location(table.load().location())
    files = PyArrowFileIO(table.load().io.properties).fs_by_scheme(scheme, authority)
    here = FileSelector(directory, recursive=True)
    before = {each.path for each in files.get_file_info(here)}
    table.ensure()
    assert not add_message(table, 1)
    assert {each.path for each in files.get_file_info(here)} == before


def test_of_two_commits_at_once_one_looks_again(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a commit's look and itself another one commits. pyiceberg must not repeat it by itself: it does
    not know that the messages may be there by now."""
    others, added_to = [lambda: add_message(table, 0, b"faster")], ArchiveBatch.added_to

    def look(self: ArchiveBatch, now: Reaches) -> Reaches:
        if others:
            others.pop()()
        return added_to(self, now)

    monkeypatch.setattr(ArchiveBatch, "added_to", look)
    assert not add_message(table, 0, b"slower")
    assert values(table) == [b"faster"]


def test_a_commit_whose_answer_is_lost_is_in_the_table(
    properties: Mapping[str, str], emulator: Ministack, identifier: str
) -> None:
    """botocore sends it again and gets ConcurrentModification, which pyiceberg takes for "not committed"."""
    place = "glue.endpoint" if properties["type"] == "glue" else "uri"
    with Proxy(emulator.endpoint).on_a_thread() as proxy:
        through = {**properties, place: properties[place].replace(emulator.endpoint, proxy.endpoint)}
        table = LakeTable("default", through, identifier)
        table.ensure()
        add_message(table, 0, b"0")
        lost = list[Reply]()

        def lose(reply: Reply) -> Sent:
            if lost or reply.operation not in {"UpdateTable", "POST"}:
                return Sent(reply.raw)
            lost.append(reply)
            return Sent(b"", close=True)

        with proxy.spoiling(lose):
            try:
                assert add_message(table, 1, b"1")
            except OSError:  # Of a catalog whose client does not repeat it: the outcome is unknown.
                assert properties["type"] == "rest"
        assert lost
        assert not add_message(table, 1, b"again")
        assert values(table) == [b"0", b"1"]


def test_an_expiry_that_fails_takes_no_batch_back(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another engine commits at that moment. The batch is committed by then."""

    def fail(_: Any) -> None:
        raise CommitFailedException("injected")

    monkeypatch.setattr(lake, "_expire", fail)
    assert add_message(table, 0, b"0")
    assert values(table) == [b"0"]


def test_a_table_made_by_others_gets_what_is_missing(properties: Mapping[str, str], identifier: str) -> None:
    """The columns of this version, which have other ids there, and that pyiceberg repeats no commit."""
    catalog = load_catalog("default", **properties)
    catalog.create_namespace(identifier.partition(".")[0])
    old = Schema(*reversed(lake.SCHEMA.fields[:-1]))
    catalog.create_table(identifier, old, partition_spec=lake._PARTITIONS)
    table = LakeTable("default", properties, identifier)
    table.ensure()
    add_message(table, 0, b"1")
    assert set(table.load().schema().column_names) == set(lake.SCHEMA.column_names)
    assert table.load().properties["commit.retry.num-retries"] == "0"
    assert values(table) == [b"1"]


@pytest.mark.parametrize("properties", ["glue"], indirect=True)
def test_the_pipelines_role_allows_what_a_table_asks_for_and_nothing_else(
    properties: Mapping[str, str], emulator: Ministack, identifier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lake._PROPERTIES, lake.KEPT_SNAPSHOTS, "1")
    with Recorder(emulator.endpoint) as recorder:
        through = dict.fromkeys(("glue.endpoint", "s3.endpoint"), recorder.url)
        table = LakeTable("default", {**properties, **through}, identifier)
        for number in range(3):
            table.ensure()
            add_message(table, number)
    assert recorder.actions("catalog") == set(JOB_STATEMENTS["Catalog"]["Action"])
    bucket = properties["warehouse"].removeprefix("s3://").partition("/")[0]
    for_files = recorder.actions(bucket) - {"s3:GetObject", "s3:ListBucket"}
    # A file that is too large for one request may fail in the middle.
    assert for_files | {"s3:AbortMultipartUpload"} == set(JOB_STATEMENTS["KeepTable"]["Action"])
    kept = {place.partition("/")[2] for action, place in recorder.seen if action == "s3:PutObject"}
    assert kept
    assert all(key.startswith("tables/") for key in kept)
