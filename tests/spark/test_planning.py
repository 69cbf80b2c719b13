"""How many calls a query's looks at its streams cost, and that the cheap ones find what the others find."""

import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from tests.buckets import key_in_new_bucket
from tests.spark.serving import ThreadedServer
from tests.spark.streams import table_options
from tests.stack.engines import LocalServices
from tests.support import BYTES, HOUR_MS, Process, World, before, make_world
from tidemark.janitor.sweep import sweep
from tidemark.log.due import Packing
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.log.schema import FORMAT_EPOCH, encode_format, log_pk
from tidemark.protocol.errors import FormatTooNew, ProtocolError
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.delete import delete
from tidemark.service.retention import trim_below
from tidemark.service.snapshots import PublishRequest, publish_snapshot
from tidemark.spark.options.read import ReadOptions, parse_read_options
from tidemark.spark.queries import load_heads, plan_partitions
from tidemark.spark.readers import connect
from tidemark.spark.readers.dynamodb import DynamoDBReader


def options_of(world: World, bucket: str, **given: str) -> ReadOptions:
    return parse_read_options(table_options(world) | {"bucket": bucket} | given, streaming=True)


def connected(options: ReadOptions) -> tuple[DynamoDBReader, Counter[str]]:
    """A reader, and what it asks of the table; the counter may be cleared."""
    reader = connect(options.connection)
    assert isinstance(reader, DynamoDBReader)
    asked: Counter[str] = Counter()
    for table in (reader._table, reader._bulk):
        assert isinstance(table, DynamoDBTable)
        before(table.dynamodb, lambda operation: asked.update([operation]))
    return reader, asked


def bucket_of(process: Process, count: int) -> str:
    bucket = key_in_new_bucket(process, "a").bucket
    for index in range(count):
        process.create(StreamKey(bucket, f"s{index:03}"))
    return bucket


def test_a_look_at_streams_that_were_not_written_to_costs_one_call_for_a_hundred(world: World) -> None:
    """The first look asks for each tail; later ones for those alone that got several batches. To plan costs
    nothing where nothing is new, and one call for a hundred streams that are."""
    process = world.process()
    bucket = bucket_of(process, 105)
    options = options_of(world, bucket, subscribePattern=".*")
    reader, asked = connected(options)

    def look(**calls: int) -> Any:
        asked.clear()
        found = load_heads(options, reader)
        assert asked == calls
        return found

    first = look(Query=1 + 105)
    assert look(Query=1, BatchGetItem=2) == first
    for name in ("s007", "s104"):
        process.append(StreamKey(bucket, name), b"12345")
    moved = look(Query=1, BatchGetItem=2 + 1)
    assert {name for name in first if moved[name] != first[name]} == {"s007", "s104"}
    for body in (b"1", b"2", b"3"):
        process.append(StreamKey(bucket, "s104"), body)
    moved = look(Query=1 + 1, BatchGetItem=2 + 1)
    assert look(Query=1 + 1, BatchGetItem=2) == moved, "what got several is expected to get more"
    assert look(Query=1, BatchGetItem=2) == moved
    starts = {name: head.tail for name, head in first.items() if name != "s104"}
    ends = {name: head.tail for name, head in moved.items()}
    asked.clear()
    planned = plan_partitions(options, reader, starts, ends)
    assert sorted(part.name for part in planned) == ["s007", "s104"]
    assert asked == {"BatchGetItem": 1}, "where the stream that is new begins"
    names = [f"s{index:03}" for index in range(110)]
    options = options_of(world, bucket, subscribe=",".join(names))
    reader, asked = connected(options)
    assert list(look(BatchGetItem=2, Query=105)) == names[:105]
    assert list(look(BatchGetItem=2 + 2)) == names[:105]


def test_a_tail_that_was_learned_long_ago_is_asked_for_anew(world: World) -> None:
    """The batch that took its place may be gone: an hour after it was written it may be packed or trimmed."""
    process = world.process()
    bucket = bucket_of(process, 1)
    key = StreamKey(bucket, "s000")
    incarnation = process.append(key, b"12345").incarnation
    reader, _ = connected(options_of(world, bucket, subscribe="s000"))
    now_ms = [world.clock.now_ms]
    reader._clock_ms = lambda: now_ms[0]
    assert reader.heads(["s000"])["s000"].tail.offset == render_offset(5)
    for body in (b"67", b"890"):
        process.append(key, body)
    process.stores.table.delete({"pk": {"S": log_pk(key, incarnation)}, "sk": {"S": render_offset(5)}})
    now_ms[0] += HOUR_MS
    assert reader.heads(["s000"])["s000"].tail.offset == render_offset(10)


def change(world: World, process: Process, chosen: random.Random, keys: list[StreamKey]) -> None:
    key = chosen.choice(keys)
    kinds = ["create", "expiring", "append", "append", "append", "close", "delete", "fork", "trim", "sweep"]
    match chosen.choice(kinds):
        case "create":
            process.create(key)
        case "expiring":
            process.create(key, expiry=Expiry(ttl_seconds=6))
        case "append":
            process.append(key, b"12345")
        case "close":
            process.append(key, chosen.choice([b"", b"67"]), close=True)
        case "delete":
            delete(process.stores, key)
        case "fork":
            process.fork(key, chosen.choice(keys), 5)
        case "trim":
            trim_below(process.stores, key, chosen.choice([5, 10]))
        case "sweep":
            world.clock.advance(2 * HOUR_MS)
            sweep(process.stores)


@pytest.mark.parametrize("seed", range(3))
def test_a_reader_that_knows_the_tails_finds_what_a_new_one_finds(world: World, seed: int) -> None:
    """Streams are created, written, closed, deleted, created again, forked, trimmed and packed, some expire;
    after each few of these both readers look, over the names and over the listing."""
    chosen, process = random.Random(seed), world.process()
    process.stores.packing = Packing(0, every_bytes=1, pack_bytes=20, min_batches=2, block_bytes=10)
    bucket = key_in_new_bucket(process, "a").bucket
    names = [f"s{index}" for index in range(5)]
    by_name = options_of(world, bucket, subscribe=",".join(names))
    listed = options_of(world, bucket, subscribePattern=".*")
    reader, _ = connected(by_name)
    reader._clock_ms = lambda: world.clock.now_ms
    for _ in range(40):
        for _ in range(chosen.randrange(3)):
            world.clock.advance(1000)
            with suppress(ProtocolError):
                change(world, process, chosen, [StreamKey(bucket, name) for name in names])
        for options in (by_name, listed):
            fresh, _ = connected(options)
            fresh._clock_ms = lambda: world.clock.now_ms
            heads = load_heads(options, fresh)
            assert load_heads(options, reader) == heads
            ends = {name: head.tail for name, head in heads.items()}
            planned = plan_partitions(options, reader, {}, ends)
            assert planned == plan_partitions(options, connect(options.connection), {}, ends)


@pytest.mark.parametrize("seed", range(5))
def test_a_tail_that_a_pack_has_taken_in_has_moved(world: World, seed: int) -> None:
    """Packs may be forced on batches of this very minute: then nothing lies at the place where the batch came
    that moved the tail."""
    chosen, process = random.Random(seed), world.process()
    process.stores.packing = Packing(0, every_bytes=1, pack_bytes=200, min_batches=2, block_bytes=10)
    bucket = key_in_new_bucket(process, "a").bucket
    key = StreamKey(bucket, "s")
    process.create(key)
    options = options_of(world, bucket, subscribe="s")
    reader, _ = connected(options)
    reader._clock_ms = lambda: world.clock.now_ms
    for _ in range(60):
        match chosen.choice(["append", "append", "pack", "look"]):
            case "append":
                process.append(key, b"12345")
            case "pack":
                sweep(process.stores)
            case "look":
                assert reader.heads(["s"])["s"].tail == connected(options)[0].heads(["s"])["s"].tail
        world.clock.advance(100)


def test_over_http_the_listing_tells_all_that_head_tells(server: ThreadedServer, world: World) -> None:
    """So no stream of a bucket costs a request of its own."""
    process = world.process()
    bucket = bucket_of(process, 6)
    for index in range(1, 6):
        process.append(StreamKey(bucket, f"s{index:03}"), b"12345")
    process.append(StreamKey(bucket, "s002"), close=True)
    process.append(StreamKey(bucket, "s003"), b"67", close=True)
    publish_snapshot(process.stores, StreamKey(bucket, "s004"), PublishRequest(5, BYTES, b"so far"))
    process.fork(StreamKey(bucket, "s006"), StreamKey(bucket, "s005"), 5)
    given = {"url": server.url, "bucket": bucket, "subscribePattern": ".*"}
    options = parse_read_options(given, streaming=True)
    server.seen.clear()
    heads = load_heads(options, connect(options.connection))
    assert [path for _, path in server.seen] == [f"/{bucket}/streams"]
    for name, head in heads.items():
        alone = connect(options.connection).heads([name])[name]
        assert (alone.earliest, alone.tail) == (head.earliest, head.tail)
    delete(process.stores, StreamKey(bucket, "s001"))
    assert heads.keys() - load_heads(options, connect(options.connection)).keys() == {"s001"}
    assert not connect(options.connection).heads(["s001"])


def test_a_table_of_a_later_release_is_not_read(services: LocalServices) -> None:
    world = make_world(services)
    connection = options_of(world, "bucket", subscribe="a").connection
    table = world.process().stores.table
    connect(connection)
    table.put(encode_format(FORMAT_EPOCH + 1))
    with pytest.raises(FormatTooNew, match="too old for the stored data"):
        connect(connection)
