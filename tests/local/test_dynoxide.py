"""How dynoxide's database is prepared: puts take constant time, and stream records are trimmed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import boto3
import pytest

from tidemark.local.dynoxide import EngineNotAvailable, find_binary, prepare_database, trim_stream_records
from tidemark.local.engines import LocalServices

DAY = 24 * 3600


def test_a_binary_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    """The index and the trimming know the database of one build."""
    (tmp_path / "dynoxide").write_bytes(b"another build")
    with pytest.raises(EngineNotAvailable, match="not the pinned build"):
        find_binary({"DYNOXIDE_PATH": str(tmp_path / "dynoxide")}, tmp_path)


def test_a_missing_binary_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineNotAvailable, match="missing"):
        find_binary({}, tmp_path)
    with pytest.raises(EngineNotAvailable, match="nowhere is missing"):
        find_binary({"DYNOXIDE_PATH": "nowhere"}, tmp_path)


@pytest.fixture
def database(dynoxide_binary: Path, tmp_path: Path, no_endpoints: None) -> Iterator[Path]:
    """Created by dynoxide, which is running on it: two tables with ten stream records each."""
    with LocalServices(tmp_path / "data", only=["dynamodb"]) as services:
        for table in ("north", "south"):
            services.create_table(table)
            _put(services, table, *map(str, range(10)))
        yield tmp_path / "data/dynamodb/dynamodb.sqlite"


def _put(services: LocalServices, table: str, *sort_keys: str) -> None:
    endpoint = services.environment["AWS_ENDPOINT_URL_DYNAMODB"]
    identity = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    with closing(boto3.client("dynamodb", endpoint_url=endpoint, **identity)) as client:
        for sort_key in sort_keys:
            client.put_item(TableName=table, Item={"pk": {"S": "p"}, "sk": {"S": sort_key}})


#: dynoxide 1.2.1's own statements: the first runs in every put, the second in every GetRecords.
NEXT_NUMBER = (
    "SELECT COALESCE(MAX(CAST(sequence_number AS INTEGER)), 0) + 1 FROM _stream_records WHERE table_name = ?1"
)
RECORDS = (
    "SELECT event_name FROM _stream_records WHERE table_name = ?1 AND shard_id = 's'"
    " AND CAST(sequence_number AS INTEGER) > 5 ORDER BY CAST(sequence_number AS INTEGER) ASC LIMIT 10"
)


@pytest.mark.parametrize("statement", [NEXT_NUMBER, RECORDS])
def test_stream_records_are_found_by_index(database: Path, statement: str) -> None:
    """Without the index both queries scan every record ever written, and every put pays for it."""
    with closing(sqlite3.connect(database)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", ("north",))]
    assert len(plan) == 1
    assert "USING INDEX tidemark_stream_records" in plan[0]


def test_preparing_twice_changes_nothing(database: Path) -> None:
    prepare_database(database)
    prepare_database(database)
    assert _numbers(database, "north") == list(range(1, 11))


def test_trimming_keeps_the_newest_of_each_table(database: Path) -> None:
    """dynoxide takes the next sequence number from it; without it, numbers would start again at 1."""
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
        connection.execute("UPDATE _stream_records SET created_at = created_at - ?", (2 * DAY,))
    prepare_database(database)
    assert _numbers(database, "north") == [10]
    assert _numbers(database, "south") == [10]


def test_sequence_numbers_go_on_after_trimming(
    dynoxide_binary: Path, tmp_path: Path, no_endpoints: None
) -> None:
    with LocalServices(tmp_path / "data", only=["dynamodb"]) as services:
        services.create_table("north")
        _put(services, "north", "1", "2", "3")
        assert services.trim_stream_records(older_than=2**40) == 2
        _put(services, "north", "4")
    assert _numbers(tmp_path / "data/dynamodb/dynamodb.sqlite", "north") == [3, 4]


def test_trimming_stops_at_the_first_record_that_is_young_enough(database: Path) -> None:
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
        connection.execute("UPDATE _stream_records SET created_at = 1000 WHERE id <= 4")
    assert trim_stream_records(database, older_than=2000) == 4
    assert _numbers(database, "north") == [5, 6, 7, 8, 9, 10]


def test_trimming_is_bounded_in_time(database: Path) -> None:
    assert trim_stream_records(database, older_than=2**40, budget_seconds=0) == 0


def _numbers(database: Path, table: str) -> list[int]:
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        rows = connection.execute(
            "SELECT CAST(sequence_number AS INTEGER) FROM _stream_records WHERE table_name = ? ORDER BY 1",
            (table,),
        )
        return [row[0] for row in rows]
