"""Bulk reads over HTTP: small streams are read together, with the rows that each has by itself."""

from typing import Any

import pytest

from tests.spark.opaque import OpaqueServer
from tests.spark.streams import Streams, plan_here, table_of
from tests.support import BYTES, JSON
from tidemark.janitor.sweep import sweep
from tidemark.service.retention import trim_below
from tidemark.spark.readers.port import DataLoss, Reader

COLUMNS = "stream,incarnation,content_type,bucket,offset,end_offset,position,value,key"
TIMED = {"includeTimestamps": "true"}


def together(reader: Reader, parts: list[Any], columns: str) -> list[dict[str, Any]]:
    batches = reader.read_all(parts, columns.split(","))
    return sorted(
        (row for batch in batches for row in batch.to_pylist()), key=lambda row: tuple(row.values())[:5]
    )


def several(streams: Streams) -> dict[str, str]:
    """Most of one append and of several, one that is empty, one of bytes, one with half of an emoji."""
    for number in range(25):
        bodies = [b'{"key":"%d","n":%d}' % (number, each) for each in range(1 + number % 4)]
        streams.fill(*bodies, suffix=f"-{number:02}", content_type=JSON)
        streams.world.clock.advance(1000)
    streams.fill(suffix="-none", content_type=JSON)
    streams.fill(b"ab", b"cd", suffix="-bytes", content_type=BYTES)
    streams.fill(b"[1,2]", b'"a"', suffix="-é/b c", content_type=JSON)
    return streams.by_http(subscribePattern=f"{streams.name}-.*")


@pytest.mark.parametrize("more", [{}, TIMED], ids=["without times", "with times"])
def test_small_streams_are_read_together(streams: Streams, more: dict[str, str]) -> None:
    given, columns = several(streams) | more, COLUMNS + (",timestamp" if more else "")
    reader, parts = plan_here(given)
    expected = sorted(table_of(reader, parts, columns), key=lambda row: tuple(row.values())[:5])
    # Written since: a page goes on behind the end of the read.
    for suffix in ("-00", "-07", "-bytes"):
        streams.append(b'{"key":"later"}', suffix=suffix)
    streams.server.seen.clear()
    assert together(reader, parts, columns) == expected
    asked = [(method, path) for method, path in streams.server.seen if path != "/v1/times"]
    assert asked == [("POST", "/v1/read")]


def test_messages_that_no_json_decoder_takes_are_read_one_stream_after_another(streams: Streams) -> None:
    """Half of an emoji, as JavaScript writes it."""
    given = several(streams)
    streams.append(rb'"\ud83d"', suffix="-03")
    reader, parts = plan_here(given)
    assert len(together(reader, parts, COLUMNS)) == len(table_of(reader, parts, COLUMNS))


@pytest.mark.parametrize("strict", [True, False])
def test_streams_that_lost_messages_are_read_by_themselves(streams: Streams, *, strict: bool) -> None:
    """Trimmed, deleted, and created again since the read was planned; the others are read together."""
    given = several(streams) | {"failOnDataLoss": str(strict)}
    reader, parts = plan_here(given)
    key = streams.key("-07")
    assert trim_below(streams.process.stores, key, int(parts[7].end) // 2)
    streams.delete("-11")
    streams.delete("-15")
    streams.fill(b'{"key":"new"}', suffix="-15", content_type=JSON)
    if strict:
        with pytest.raises(DataLoss):
            together(reader, parts, COLUMNS)
        return
    found = [row["stream"][len(streams.name) :] for row in together(reader, parts, COLUMNS)]
    assert [found.count(suffix) for suffix in ("-06", "-07", "-11", "-15", "-19")] == [3, 2, 0, 0, 4]
    assert sorted(name[len(streams.name) :] for name, _ in reader.lost) == ["-07", "-11", "-15"]


def test_compacted_streams_are_read_by_themselves(streams: Streams) -> None:
    from tests.spark.changes import compacted_rows

    rows = compacted_rows(streams)
    streams.fill(b"[1]", suffix="-a", content_type=JSON)
    sweep(streams.process.stores)
    reader, parts = plan_here(streams.by_http(subscribePattern=f"{streams.name}.*", **TIMED))
    found = together(reader, parts, "stream,offset,value,timestamp")
    assert [row["value"] for row in found if row["stream"] == streams.name] == [
        body for _, body in rows.read()
    ]
    assert reader.lost == {}


def test_a_server_without_bulk_reads_is_asked_once() -> None:
    with OpaqueServer(is_json=True) as foreign:
        foreign.append(b"1")
        reader, [part] = plan_here({"url": foreign.url, "subscribe": "s", "retrySeconds": "0"})
        parts = [type(part)(**{**vars(part), "size": 1})] * 3
        for _ in range(2):
            assert [row["value"] for row in together(reader, parts, "stream,value")] == [b"1"] * 3
        assert not reader._bulk._is_offered  # type: ignore[attr-defined]
