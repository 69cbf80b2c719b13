"""The table's schema: every item is read back as it was written, and sorts in the right place."""

import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidemark.log import schema
from tidemark.log.records import (
    Batch,
    BucketRecord,
    Due,
    DueKind,
    EndMark,
    Entry,
    Fork,
    Segment,
    Snapshot,
    StreamRecord,
    Tombstone,
    Waiter,
)
from tidemark.log.tails import RECLAIM_AFTER_MS
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.errors import Damaged
from tidemark.protocol.expiry import NEVER, Expiry, parse_expiry
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.offset import MAX_OFFSET, render_offset
from tidemark.protocol.producer import Claim, ProducerState
from tidemark.protocol.stream_key import MAX_STREAM_ID_BYTES, StreamKey
from tidemark.protocol.tail import Tail

Item = dict[str, Any]
SAFE = 2**53 - 1
#: The first millisecond of 2025, and roughly the year 33658: every clock a server can have.
times = st.integers(min_value=1_735_689_600_000, max_value=10**15)
ids = st.text(alphabet=string.ascii_letters + string.digits + "-_", min_size=16, max_size=16)
names = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
stream_keys = st.builds(StreamKey, st.just("v1"), names)
offsets = st.integers(min_value=0, max_value=MAX_OFFSET)
printable = st.text(alphabet=st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)
safe_integers = st.integers(min_value=0, max_value=SAFE)
claims = st.builds(Claim, printable, safe_integers, safe_integers)
producers = st.builds(ProducerState, printable, safe_integers, safe_integers, offsets)
content_types = st.sampled_from(
    ["application/json", "Text/Plain; charset=utf-8", 'a/b; c="d"', "application/octet-stream"]
).map(parse_content_type)
expiries = st.one_of(
    st.just(NEVER),
    safe_integers.map(lambda seconds: Expiry(ttl_seconds=seconds)),
    st.sampled_from(
        [
            "2030-01-15T12:00:00Z",
            "2030-01-15t12:00:00.123456789+01:30",
            "1960-01-01T00:00:00Z",
            "0001-01-01T00:00:00Z",
        ]
    ).map(lambda at: parse_expiry(None, at)),
)
segments = st.builds(Segment, stream_keys, ids, offsets)
fork_points = st.builds(ForkPoint, stream_keys, st.one_of(st.none(), offsets), st.integers(0, SAFE))
forks = st.builds(Fork, fork_points, ids, st.integers(min_value=1, max_value=32))
snapshots = st.builds(Snapshot, offsets, printable, content_types, safe_integers, times)
#: References and the deleted mark are not written with the item: they change by updates alone.
records = st.builds(
    StreamRecord,
    stream_keys,
    ids,
    content_types,
    expiries,
    times,
    times,
    lineage=st.lists(segments, max_size=3).map(tuple),
    fork=st.one_of(st.none(), forks),
    snapshot=st.one_of(st.none(), snapshots),
    retained=offsets,
)
buckets = st.builds(BucketRecord, printable, times, ids, st.integers(0, 10**9))
dues = st.builds(
    Due,
    st.sampled_from(DueKind),
    stream_keys,
    ids,
    st.integers(min_value=0, max_value=10**19),
    mark=st.one_of(st.just(""), ids),
    offset=offsets,
    blob=st.one_of(st.none(), printable),
)
PLACE = {"pk": {"S": "bucket/v1"}, "sk": {"S": "stream/a"}}
end_marks = st.builds(EndMark, st.integers(0, 2**50), st.text(min_size=1), st.booleans())
waiters = st.builds(Waiter, ids, printable.map("https://sqs.example/{}".format), times)


@st.composite
def tails(draw: st.DrawFn, offset: int) -> Tail:
    return Tail(
        offset=offset,
        closed=draw(st.booleans()),
        stream_seq=draw(st.one_of(st.none(), printable)),
        producers=tuple(draw(st.lists(producers, max_size=40))),
        overflowed=draw(st.booleans()),
        closed_by=draw(st.one_of(st.none(), claims)),
    )


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    # Repeated, some are long enough to be deflated.
    data = draw(st.binary(max_size=60)) * draw(st.sampled_from([1, 1, 100]))
    places = st.integers(min_value=1, max_value=len(data) - 1)
    cuts = sorted(draw(st.sets(places, max_size=60))) if len(data) > 1 else []
    ends = [*cuts, len(data)] if data else []
    blob = draw(st.one_of(st.none(), ids)) if data else None
    start = draw(st.integers(min_value=0, max_value=MAX_OFFSET - len(data)))
    return Batch(
        start=start,
        after=draw(tails(start + len(data))),
        append_id=draw(ids),
        time_ms=draw(times),
        data=data if blob is None else None,
        blob=blob,
        lengths=tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False)),
        appends=tuple(draw(st.one_of(st.just([]), st.lists(st.integers(1, 10**5), min_size=2, max_size=9)))),
    )


@st.composite
def tombstones(draw: st.DrawFn) -> Tombstone:
    start = draw(st.integers(min_value=0, max_value=MAX_OFFSET))
    return Tombstone(start, Tail(start, closed=True), draw(ids), draw(times), draw(st.booleans()))


def stored(item: Item) -> Item:
    """The item as DynamoDB returns it: each attribute of one type, numbers as text, binary values in
    base64."""
    for name, value in item.items():
        ((kind, content),) = value.items()
        expected: type = {"S": str, "N": str, "B": str, "BOOL": bool}[kind]
        assert type(content) is expected, name
        assert kind != "N" or abs(int(str(content))) < 10**38
        assert name not in {"pk", "sk"} or content, "a key is never empty"
    return dict(item)


# --- round trips --------------------------------------------------------------------

#: Of each kind of item: the records, how one is written and read, and its key.
CODECS: dict[str, tuple[Any, Callable[[Any], Item], Callable[[Item], object], Callable[[Any], Item]]] = {
    "stream": (records, schema.encode_stream, schema.decode_stream, lambda it: schema.stream_key(it.key)),
    "bucket": (buckets, schema.encode_bucket, schema.decode_bucket, lambda it: schema.bucket_key(it.bucket)),
    "batch": (batches(), partial(schema.encode_batch, "log/x"), schema.decode_entry,
     lambda it: {"pk": {"S": "log/x"}, "sk": {"S": schema.entry_sk(it)}}),
    "tombstone": (tombstones(), partial(schema.encode_tombstone, "log/x"), schema.decode_entry,
     lambda it: {"pk": {"S": "log/x"}, "sk": {"S": schema.entry_sk(it)}}),
    "producer": (producers, partial(schema.encode_producer, "x"), schema.decode_producer,
     lambda it: schema.producer_key("x", it.producer_id)),
    "due": (dues, schema.encode_due, schema.decode_due, schema.due_key),
    "waiter": (waiters, schema.encode_waiter, schema.decode_waiter, schema.waiter_key),
    "end mark": (end_marks, partial(schema.encode_end_mark, PLACE), schema.decode_end_mark, lambda _: PLACE),
}  # fmt: skip


@pytest.mark.parametrize("kind", CODECS)
@given(data=st.data())
def test_an_item_is_read_back_as_it_was_written(kind: str, data: st.DataObject) -> None:
    values, encode, decode, key = CODECS[kind]
    value = data.draw(values)
    item = stored(encode(value))
    assert decode(item) == value
    assert {name: item[name] for name in ("pk", "sk")} == key(value)
    assert schema.is_end_mark(item) == (kind == "end mark")


@given(records, st.integers(min_value=1, max_value=10**6))
def test_a_stream_is_read_back_with_what_updates_added(record: StreamRecord, references: int) -> None:
    item = schema.encode_stream(record) | {"rc": {"N": str(references)}, "dl": {"BOOL": True}}
    assert schema.decode_stream(item) == replace(record, references=references, deleted=True)


@given(buckets)
def test_a_bucket_sorts_before_its_streams(record: BucketRecord) -> None:
    first = schema.stream_key(StreamKey(record.bucket, "\x01"))
    assert schema.bucket_key(record.bucket)["sk"]["S"] < first["sk"]["S"]


@given(waiters, st.integers(0, 2**50))
def test_what_dynamodb_may_remove_has_had_its_time(waiter: Waiter, ended_ms: int) -> None:
    """The attribute is the table's time to live (`template.yaml`), in whole seconds and not too early."""
    ttl_ms = int(schema.encode_waiter(waiter)["ttl"]["N"]) * 1000
    assert 0 <= ttl_ms - waiter.until_ms < 1000
    mark = schema.encode_end_mark(PLACE, EndMark(ended_ms, "x"))
    assert int(mark["ttl"]["N"]) * 1000 >= ended_ms + schema.END_MARK_KEPT_MS
    assert schema.END_MARK_KEPT_MS > RECLAIM_AFTER_MS, "so it outlives every late write"


@given(st.binary(min_size=1, max_size=3000), st.integers(min_value=-2, max_value=2).filter(bool))
def test_a_batch_with_more_or_fewer_bytes_than_its_offsets_say_is_damaged(data: bytes, change: int) -> None:
    """Plain and deflated; also if a fork inherits only a part."""
    size = max(1, len(data) + change)
    item = schema.encode_batch("log/x", Batch(0, Tail(len(data)), "id", 0, data)) | {"e": {"N": str(size)}}
    if size != len(data):
        with pytest.raises(Damaged):
            schema.decode_entry(item)
    assert schema.decode_state(item).end == size


@given(st.lists(st.integers(0, 10**12), max_size=50) | st.lists(st.integers(127, 16_384), max_size=50))
def test_lengths_are_read_back_as_they_were_written(lengths: list[int]) -> None:
    assert schema.decode_lengths(schema.encode_lengths(lengths)) == tuple(lengths)


def written(entry: Batch | Tombstone) -> Item:
    encode: Any = schema.encode_batch if isinstance(entry, Batch) else schema.encode_tombstone
    item: Item = encode("log/x", entry)
    return item


@given(batches() | tombstones())
def test_no_attribute_of_a_batch_or_a_tombstone_can_be_left_out(entry: Batch | Tombstone) -> None:
    """A write is billed by the kilobyte of the whole item, so an attribute that is not needed is not
    written."""
    item = written(entry)
    for name in item.keys() - {"pk"}:
        assert read_without(item, name) != entry, name


def read_without(item: Item, name: str) -> Entry | None:
    """The entry without that attribute; None if it cannot be read at all."""
    try:
        return schema.decode_entry({other: value for other, value in item.items() if other != name})
    except (KeyError, Damaged):
        return None


@pytest.mark.parametrize(
    ("attributes", "names"),
    [
        (schema.STATE_ATTRIBUTES, "start after append_id time_ms"),
        (schema.BOUNDARY_ATTRIBUTES, "start end time_ms"),
    ],
    ids=["what a writer decides on", "where messages end"],
)
@given(entry=batches() | tombstones())
def test_an_entry_can_be_decoded_without_its_bytes(
    attributes: Sequence[str], names: str, entry: Batch | Tombstone
) -> None:
    item = written(entry)
    lean = schema.decode_entry({name: item[name] for name in attributes if name in item})
    assert type(lean) is type(entry)
    assert [getattr(lean, name) for name in names.split()] == [getattr(entry, name) for name in names.split()]
    if isinstance(lean, Batch) and isinstance(entry, Batch) and "m" in attributes:
        assert lean.lengths == entry.lengths


def test_a_read_of_the_tail_leaves_out_the_bytes() -> None:
    """And the messages' lengths: such a read must not pay for them."""
    batch = Batch(0, Tail(4000), "id", 1, bytes(range(200)) * 20, lengths=(1,) * 4000)
    item = schema.encode_batch("log/x", batch)
    lean = {name: item[name] for name in schema.STATE_ATTRIBUTES if name in item}
    assert len(orjson.dumps(lean)) < 200 < len(orjson.dumps(item)) // 4


@pytest.mark.parametrize(
    ("length", "size"), [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (4 * 2**20, 4)]
)
def test_a_length_under_128_takes_one_byte(length: int, size: int) -> None:
    assert len(schema.encode_lengths([length])) == size


# --- order --------------------------------------------------------------------------


@given(batches() | tombstones())
def test_batches_sort_by_start_and_a_tombstone_behind_its_closing_batch(entry: Batch | Tombstone) -> None:
    """A closing batch has no bytes, so its tombstone sorts between it and a batch one byte on."""
    assume(entry.start < MAX_OFFSET)  # Behind the last offset of all there is none.
    plain, behind = render_offset(entry.start), schema.just_behind(entry.start)
    assert plain < behind < render_offset(entry.start + 1)
    is_behind = isinstance(entry, Tombstone) and entry.behind_closing
    assert schema.entry_sk(entry) == (behind if is_behind else plain)


@given(st.one_of(times, st.integers(min_value=-(10**14), max_value=10**20)), times, ids)
def test_the_janitors_query_finds_the_due_entries(due_ms: int, now_ms: int, incarnation: str) -> None:
    """Its query is for sort keys from "0" on: a time before 1970 must not sort below that, and one far in the
    future, with more digits, not in between."""
    due = Due(DueKind.EXPIRE, StreamKey("v1", "x"), incarnation, due_ms)
    sk = schema.due_key(due)["sk"]["S"]
    assert ("0" <= sk <= schema.due_before(now_ms)) == (due_ms <= now_ms)


@given(ids)
def test_every_entry_is_in_a_shard_that_the_janitor_reads(incarnation: str) -> None:
    due = Due(DueKind.RECLAIM, StreamKey("v1", "x"), incarnation, 1)
    assert schema.due_key(due)["pk"]["S"] in {schema.due_pk(shard) for shard in range(schema.DUE_SHARDS)}


@given(waiters, ids)
def test_one_query_finds_all_waiters_of_a_stream_and_no_others(waiter: Waiter, other: str) -> None:
    key = schema.waiter_key(waiter)
    for incarnation in (waiter.incarnation, other, waiter.incarnation[:-1] + "~"):
        pk, low, high = schema.waiters_of(incarnation)
        found = key["pk"]["S"] == pk and low <= key["sk"]["S"] <= high
        assert found == (incarnation == waiter.incarnation)
    assert key["pk"]["S"] in {schema.wait_pk(shard) for shard in range(schema.WAIT_SHARDS)}


# --- keys ---------------------------------------------------------------------------


@given(stream_keys, ids, batches())
def test_the_key_of_a_log_names_its_stream(key: StreamKey, incarnation: str, batch: Batch) -> None:
    """So each incarnation of each stream has its own. A stream record has nothing else: whose readers to
    wake, and from which offset."""
    pk = schema.log_pk(key, incarnation)
    assert schema.is_log_pk(pk)
    assert schema.decode_log_pk(pk) == (key, incarnation)
    assert schema.decode_batch_start(schema.entry_sk(batch)) == batch.start


def test_only_batches_have_the_key_of_a_log() -> None:
    due = Due(DueKind.EXPIRE, StreamKey("v1", "log/"), "x", 1)
    for key in (
        schema.stream_key(due.key),
        schema.due_key(due),
        schema.producer_key("x", "log/"),
        schema.waiter_key(Waiter("x", "log/", 1)),
    ):
        assert not schema.is_log_pk(key["pk"]["S"])


def test_the_longest_name_fits_a_key() -> None:
    """DynamoDB takes 2,048 bytes in a partition key and 1,024 in a sort key."""
    key = StreamKey("v1", "é" * (MAX_STREAM_ID_BYTES // 2))
    assert len(schema.stream_key(key)["sk"]["S"].encode()) <= 1024
    assert len(schema.log_pk(key, "x" * 16).encode()) <= 2048
    due = schema.due_key(Due(DueKind.EXPIRE, key, "x" * 16, 10**19, mark="x" * 16, offset=MAX_OFFSET))
    assert len(due["sk"]["S"].encode()) <= 1024
    assert len(schema.producer_key("x" * 16, "p" * 256)["sk"]["S"].encode()) <= 1024
    called = "/v1/stream/" + "%C3%A9" * (MAX_STREAM_ID_BYTES // 2)
    waiter = Waiter("x" * 16, "c" * 128, 1, called, 1)
    assert len(schema.waiter_key(waiter)["sk"]["S"].encode()) <= 1024
    assert schema.waiter_key(waiter)["sk"]["S"] < "x" * 16 + "/", "releases without sockets would find it"
