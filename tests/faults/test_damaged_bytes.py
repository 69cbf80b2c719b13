"""A batch whose stored bytes are not those that were appended: a reader gets 503, never a gap or wrong bytes,
the log of the process says where, and nobody keeps it."""

from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.buckets import key_in_new_bucket, objects, publish
from tests.support import Process, World, a_key
from tidemark.blobs import log_prefix, snapshot_blob_key
from tidemark.janitor.pack import pack_stream
from tidemark.log.due import Packing
from tidemark.log.records import Batch, Checksums, Due, DueKind
from tidemark.log.schema import decode_entry, encode_batch, log_pk, stream_key
from tidemark.log.schema.batches import deflate, inflate
from tidemark.log.tails import RecentBatches
from tidemark.protocol.errors import Damaged
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.append import INLINE_BYTES
from tidemark.service.load import load_head
from tidemark.service.read import read, read_record
from tidemark.service.snapshots import MAX_ANSWER_BYTES, begin_upload, bootstrap, read_snapshot

SMALL, SHRINKS, LARGE = b"12345", b"shrinks " * 200, b"large " * (INLINE_BYTES // 6 + 1)
Item = dict[str, Any]


def binary(data: bytes) -> dict[str, str]:
    return {"B": b64encode(data).decode()}


def of(item: Item, name: str) -> bytes:
    return b64decode(item[name]["B"])


def flipped(data: bytes, bit: int = 12) -> bytes:
    """With one bit another."""
    return (int.from_bytes(data, "big") ^ 1 << bit).to_bytes(len(data), "big")


OTHER = bytes(reversed(SHRINKS))

DAMAGES: dict[str, tuple[bytes, Callable[[Item], Item]]] = {
    "shorter": (SMALL, lambda item: item | {"b": binary(of(item, "b")[:-1])}),
    "longer": (SMALL, lambda item: item | {"b": binary(of(item, "b") + b"6")}),
    "no base64": (SMALL, lambda item: item | {"b": {"B": ""}}),
    "a flipped bit": (SMALL, lambda item: item | {"b": binary(flipped(of(item, "b")))}),
    "other bytes": (SMALL, lambda item: item | {"b": binary(b"54321")}),
    "no end": (SMALL, lambda item: {name: value for name, value in item.items() if name != "e"}),
    "an end that is no number": (SMALL, lambda item: item | {"e": {"N": "1x"}}),
    "no lengths": (SMALL, lambda item: item | {"m": {"S": "x"}}),
    "a flipped bit of the checksum": (SMALL, lambda item: item | {"h": binary(flipped(of(item, "h")))}),
    "the checksums of another place": (
        SMALL,
        lambda item: item | {"h": binary(of(encode_batch("", sealed(0, SMALL)), "h"))},
    ),
    "deflated, and other bytes": (SHRINKS, lambda item: item | {"z": binary(deflate(OTHER) or b"")}),
    "deflated shorter": (SHRINKS, lambda item: item | {"z": binary(deflate(SHRINKS[:-1]) or b"")}),
    "deflated longer": (SHRINKS, lambda item: item | {"z": binary(deflate(SHRINKS + b"x") or b"")}),
    "deflated cut": (SHRINKS, lambda item: item | {"z": binary(of(item, "z")[:-3])}),
    "deflated and more": (SHRINKS, lambda item: item | {"z": binary(of(item, "z") + b"more")}),
    "not deflated": (SHRINKS, lambda item: item | {"z": binary(b"\xff\xff\xff")}),
}


def batches(process: Process, key: StreamKey) -> list[Item]:
    return process.stores.table.query(log_pk(key, load_head(process.stores, key).record.incarnation))[0]


def a_stream(world: World, *bodies: bytes) -> tuple[Process, Process, StreamKey]:
    """Its writer, and a process that knows nothing of it."""
    writer, key = world.process(), a_key()
    writer.create(key)
    for each in bodies:
        writer.append(key, each)
    return writer, world.process(), key


def sealed(start: int, data: bytes) -> Batch:
    return Batch(start, Tail(start + len(data)), "id", 0, data, checksums=Checksums.of(None, start, data))


def decoded_data(item: Any) -> bytes | None:
    batch = decode_entry(item)
    assert isinstance(batch, Batch)
    return batch.data


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_batch_is_not_decoded(kind: str) -> None:
    body, change = DAMAGES[kind]
    item = encode_batch("", sealed(5, body))
    assert decoded_data(item) == body
    with pytest.raises(Damaged):
        decode_entry(change(item))


def another_history(items: list[Item]) -> None:
    """Each batch is well by itself, and was written behind other bytes than those before it."""
    other = encode_batch("", sealed(0, b"other"))
    items[0] |= {name: other[name] for name in "bh"}


def swap(names: str) -> Callable[[list[Item]], None]:
    def change(items: list[Item]) -> None:
        for name in names:
            items[1][name], items[2][name] = items[2][name], items[1][name]

    return change


#: What is changed in a log of four batches, and from where it cannot be read then.
LOGS: dict[str, tuple[Callable[[list[Item]], object], tuple[int, ...]]] = {
    "other bytes": (lambda items: items[1].update(b=binary(b"eno")), (0, 5, 6)),
    "no bytes": (lambda items: items[1].pop("b"), (0, 5, 6)),
    "a batch is gone": (lambda items: items.pop(1), (0,)),
    "two batches with each other's bytes": (swap("b"), (0, 5, 8)),
    "two batches with each other's bytes and checksums": (swap("bh"), (0, 5, 8)),
    "a batch that another history followed": (another_history, (0,)),
}


@pytest.mark.parametrize(("change", "starts"), LOGS.values(), ids=LOGS)
def test_a_damaged_log_is_never_returned(
    world: World,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[list[Item]], object],
    starts: tuple[int, ...],
) -> None:
    """Nor packed. What lies behind it is well."""
    writer, reader, key = a_stream(world, b"first", b"one", b"two", b"last")
    items = batches(writer, key)
    writer.stores.table.delete_many([{"pk": item["pk"], "sk": item["sk"]} for item in items])
    change(items)
    for item in items:
        writer.stores.table.put(item)
    for start in starts:
        with pytest.raises(Damaged):
            reader.read_all(key, start)
    assert read(reader.stores, key, 11).data == b"last"
    assert "damaged" in caplog.text
    incarnation = load_head(reader.stores, key).record.incarnation
    assert reader.stores.recent.chain(incarnation, 5, 1 << 20) == []
    reader.stores.packing = Packing.after_seconds(0)
    with suppress(Damaged):
        pack_stream(reader.stores, Due(DueKind.PACK, key, incarnation, 0), lambda: True)
    assert load_head(reader.stores, key).record.packed == 0


@pytest.mark.parametrize(
    "attribute", [{"ct": {"S": ""}}, {"cr": {"N": "x"}}, {"ln": {"S": "["}}, {"inc": {}}]
)
def test_a_stream_whose_item_is_damaged_is_not_there_in_part(world: World, attribute: Item) -> None:
    writer, key = world.process(), a_key()
    writer.create(key)
    item = writer.stores.table.get(stream_key(key))
    assert item is not None
    writer.stores.table.put(item | attribute)
    with pytest.raises(Damaged):
        read(world.process().stores, key, 0)


def test_writers_can_append_behind_a_damaged_batch(world: World) -> None:
    """They decide on its state, which is there; also one that finds it in its way."""
    writer, rival, key = world.process(), world.process(), a_key()
    writer.create(key)
    rival.append(key, SMALL)
    rival.stores.table.put(DAMAGES["shorter"][1](batches(rival, key)[0]))
    writer.append(key, b"by a loser of a race")
    assert load_head(rival.stores, key).tail.offset == 25
    assert read(rival.stores, key, 5).data == b"by a loser of a race"


def test_no_flipped_bit_of_a_deflated_body_is_returned() -> None:
    """Some of them inflate to as many bytes, which are others; a few change none."""
    item = encode_batch("", sealed(5, SHRINKS))
    deflated, found = of(item, "z"), 0
    for bit in range(8 * len(deflated)):
        damaged = flipped(deflated, bit)
        with suppress(ValueError):
            found += inflate(damaged, len(SHRINKS)) != SHRINKS
        with suppress(Damaged):
            assert decoded_data(item | {"z": binary(damaged)}) == SHRINKS
    assert found, "lengths alone do not tell"


@pytest.mark.parametrize("start", [0, 9])
def test_a_stream_does_not_end_before_a_tail_that_was_seen(world: World, start: int) -> None:
    """Where the last batch is gone, a reader is not told that it is up to date, nor that it went too far."""
    writer, _, key = a_stream(world, b"first", b"four", b"last")
    last = batches(writer, key)[-1]
    writer.stores.table.delete_many([{"pk": last["pk"], "sk": last["sk"]}])
    writer.stores.recent = RecentBatches(1 << 20)
    with pytest.raises(Damaged):
        read(writer.stores, key, start)


def test_batches_without_checksums_stay_readable(world: World) -> None:
    """Those that earlier releases wrote. A chain begins anew behind them, and goes on."""
    writer, _, key = a_stream(world, b"first", LARGE)
    table = writer.stores.table
    for item in batches(writer, key):
        table.put({name: value for name, value in item.items() if name != "h"})
    for body in (SHRINKS, b"last"):
        world.process().append(key, body)
    assert world.process().read_all(key) == b"first" + LARGE + SHRINKS + b"last"
    table.put(DAMAGES["deflated, and other bytes"][1](batches(writer, key)[2]))
    with pytest.raises(Damaged):
        world.process().read_all(key)


@pytest.mark.parametrize(
    "stored",
    [b"", LARGE[:-1], LARGE + b"x", bytes(reversed(LARGE))],
    ids=["empty", "shorter", "longer", "other bytes"],
)
def test_a_large_body_that_is_not_as_it_was_is_never_returned(
    world: World, stored: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A fork's part of it is shorter, and the object is checked as a whole."""
    writer, reader, key = a_stream(world, b"first", LARGE, b"last")
    forked = a_key("fork")
    writer.fork(forked, key, 5, 10)
    assert world.process().read_all(forked) == b"first" + LARGE[:10]
    incarnation = load_head(writer.stores, key).record.incarnation
    (found,) = objects(writer, world, log_prefix(incarnation))
    writer.s3.put_object(Bucket=world.bucket_name, Key=found, Body=stored)
    reader.objects.sleep = lambda _: None
    for damaged in (key, forked):
        with pytest.raises(Damaged):
            reader.read_all(damaged)
    assert found in caplog.text
    assert reader.stores.recent.chain(incarnation, 5, 1 << 20) == []


def test_what_is_damaged_beyond_a_page_is_left_to_the_page_that_has_it(world: World) -> None:
    writer, reader, key = a_stream(world, LARGE, LARGE, LARGE)
    record = load_head(writer.stores, key).record
    writer.stores.table.put(batches(writer, key)[2] | {"h": {"S": ""}})
    for start in (0, len(LARGE)):
        assert read_record(reader.stores, record, start, limit_bytes=0).data == LARGE


@pytest.mark.parametrize("stored", [b"<x", b"<y>"], ids=["shorter", "other bytes"])
def test_a_snapshot_that_is_not_as_it_was_is_never_returned(
    world: World, caplog: pytest.LogCaptureFixture, stored: bytes
) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key)
    process.append(key, b"x")
    snapshot = publish(process, key, 1, b"<x>")
    process.s3.put_object(Bucket=world.bucket_name, Key=snapshot.blob, Body=stored)
    process.objects.sleep = lambda _: None
    with pytest.raises(Damaged):
        read_snapshot(process.stores, key, 1)
    with pytest.raises(Damaged):
        bootstrap(process.stores, key)
    assert snapshot.blob in caplog.text


@pytest.mark.parametrize("size", [3, MAX_ANSWER_BYTES + 1])
@pytest.mark.parametrize("offset", [0, 1], ids=["same size", "longer"])
def test_an_upload_is_read_as_it_was_published(
    world: World, caplog: pytest.LogCaptureFixture, size: int, offset: int
) -> None:
    """Whoever writes over it past the URL that was given."""
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key)
    process.append(key, b"x")
    begun = begin_upload(process.stores, key, 1)
    name = snapshot_blob_key(load_head(process.stores, key).record.incarnation, 1, begun.id.mark)
    process.s3.put_object(Bucket=world.bucket_name, Key=name, Body=bytes(size))
    publish(process, key, 1, upload=begun.id)
    process.objects.sleep = lambda _: None
    process.s3.put_object(Bucket=world.bucket_name, Key=name, Body=b"y" * (size + offset))
    with pytest.raises(Damaged):
        read_snapshot(process.stores, key, 1)
    assert name in caplog.text
