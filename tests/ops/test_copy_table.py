"""A restore: the new table gets the items of the old one as they are, whatever happens on the way."""

import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from tests.stack.engines import LocalServices
from tests.support import HOUR_MS, JSON, TEXT, Process, World, a_key, before, make_world, refusal
from tidemark.aws.clients import s3_client
from tidemark.aws.dynamodb import DynamoDB, connect_dynamodb
from tidemark.aws.http import Account
from tidemark.aws.retry import Breaker, NoAnswer
from tidemark.janitor.sweep import sweep
from tidemark.log.due import Packing
from tidemark.log.records import Waiter
from tidemark.log.schema import FORMAT_EPOCH, FORMAT_KEY, decode_format, encode_format
from tidemark.log.waiters import put_waiter
from tidemark.ops import copy_table
from tidemark.ops.copy_table import CannotCopy, Copy, main
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.buckets import create_bucket
from tidemark.service.delete import delete

LARGE = b"x" * 70_000


@pytest.fixture
def old(services: LocalServices) -> World:
    return make_world(services)


@pytest.fixture
def new(services: LocalServices, old: World) -> World:
    made = make_world(services)
    made.clock = old.clock
    return made


def fill(process: Process) -> None:
    """A little of each kind of item: batches, forks, producers, buckets, what is due, a waiting reader."""
    create_bucket(process.stores, "agents")
    keys = [*(a_key(f"plain/{number}") for number in range(12)), StreamKey("agents", "run")]
    for number, key in enumerate(keys):
        process.create(key, content_type=TEXT, body=b"begin ")
        for part in range(number % 4):
            process.append(key, b"%d " % part, content_type=TEXT, claim=(f"p{number}", 0, part))
    process.fork(fork := a_key("fork"), keys[3])
    process.append(fork, b"on its own", content_type=TEXT)
    process.create(crowded := a_key("crowded"), content_type=JSON)
    for number in range(40):
        process.append(crowded, b"%d" % number, content_type=JSON, claim=(f"writer-{number}", 0, 0))
    process.create(a_key("short"), expiry=Expiry(ttl_seconds=60), body=b"x")
    process.create(gone := a_key("gone"), body=b"x")
    delete(process.stores, gone)
    put_waiter(process.stores.table, Waiter("inc", "https://sqs/queue", process.stores.clock_ms() + 60_000))


def items_of(world: World) -> dict[tuple[str, str], Any]:
    status, answer = world.process().dynamodb.send(
        "Scan", orjson.dumps({"TableName": world.table_name, "ConsistentRead": True})
    )
    assert status == 200
    return {(item["pk"]["S"], item["sk"]["S"]): item for item in orjson.loads(answer)["Items"]}


def check_same(new: World, old: World) -> None:
    """All but who waited on the old stack, and the format, which is the new stack's own."""
    expected = {
        key: item for key, item in items_of(old).items() if not key[0].startswith(("wait/", "format"))
    }
    assert {*expected} >= {("bucket/agents", "stream/run")}
    assert {key: item for key, item in items_of(new).items() if key[0] != "format"} == expected


def copy_of(old: World, new: World) -> Copy:
    copy = Copy(connect_dynamodb(Account()), old.table_name, new.table_name)
    copy._dynamodb.sleep = lambda _: None
    return copy


def test_a_copy_holds_every_item_but_waiting_readers_and_the_format(
    old: World, new: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new stack's functions have told its format before the copy begins."""
    fill(old.process())
    old.process().stores.table.put(encode_format(FORMAT_EPOCH - 1))
    new.process().stores.table.put(encode_format(FORMAT_EPOCH))
    assert main([old.table_name, new.table_name]) == 0
    assert f"to {new.table_name}" in capsys.readouterr().out
    check_same(new, old)
    assert decode_format(new.process().stores.table.get(FORMAT_KEY)) == FORMAT_EPOCH


def test_a_restore_has_the_large_bodies_of_streams_that_were_deleted_since(
    services: LocalServices, old: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bucket keeps versions (template.yaml), and the copy takes those of the moment."""
    s3_client().put_bucket_versioning(Bucket=old.bucket_name, VersioningConfiguration={"Status": "Enabled"})
    process, large = old.process(), a_key("large")
    process.create(large, body=LARGE)
    s3_client().put_object(Bucket=old.bucket_name, Key="gone", Body=b"before")
    s3_client().delete_object(Bucket=old.bucket_name, Key="gone")
    time.sleep(1.1)  # S3's times have no fractions.
    moment = datetime.now(UTC)
    restored, new = make_world(services), make_world(services)
    copy_of(old, restored).run()
    delete(process.stores, large)
    old.clock.advance(3 * HOUR_MS)
    for _ in range(2):
        sweep(process.stores)
    named = {each["Key"] for each in s3_client().list_objects_v2(Bucket=old.bucket_name).get("Contents", ())}
    objects = ["--objects", old.bucket_name, new.bucket_name, "--at", moment.isoformat()]
    assert main([restored.table_name, new.table_name, "--objects", "none", *objects[2:]]) == 1
    assert "NoSuchBucket" in capsys.readouterr().err
    assert main([restored.table_name, new.table_name, *objects]) == 0
    there = {each["Key"] for each in s3_client().list_objects_v2(Bucket=new.bucket_name)["Contents"]}
    assert there > named, "what the janitor has removed meanwhile"
    assert "gone" not in there, "removed before that moment"
    assert new.process().read_all(large) == LARGE


def test_a_copy_without_credentials_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(copy_table, "Account", Mock(side_effect=OSError("No AWS credentials were found")))
    assert main(["old", "new"]) == 1
    assert capsys.readouterr().err == "tidemark: No AWS credentials were found\n"


def kinds_written(copy: Copy) -> list[str]:
    written: list[str] = []
    send = copy._dynamodb.send

    def watching(operation: str, body: bytes) -> tuple[int, bytes]:
        if operation == "BatchWriteItem":
            [requests] = orjson.loads(body)["RequestItems"].values()
            written.extend(each["PutRequest"]["Item"]["pk"]["S"].partition("/")[0] for each in requests)
        return send(operation, body)

    copy._dynamodb.send = watching
    return written


def test_batches_are_copied_before_streams_and_these_before_janitors_entries(old: World, new: World) -> None:
    """The new stack's janitor is at work meanwhile: an entry that finds no stream would take its bodies for
    orphans. Where each write is answered, nothing is waited for."""
    fill(old.process())
    copy = copy_of(old, new)
    waits: list[object] = []
    copy._dynamodb.sleep = copy.report = waits.append
    written = kinds_written(copy)
    assert copy.run() == len(written)
    assert waits == []
    order = {"log": 0, "producer": 0, "buckets": 0, "bucket": 1, "due": 2}
    assert {*written} == {*order}
    places = [order[kind] for kind in written]
    assert places == sorted(places)


def test_an_interrupted_copy_can_be_repeated(
    old: World, new: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the janitor may come, the second one waits for what the first one may have under way."""

    def connect_without_pauses(account: Account) -> DynamoDB:
        dynamodb = connect_dynamodb(account)
        dynamodb.sleep = lambda _: None
        return dynamodb

    monkeypatch.setattr(copy_table, "connect_dynamodb", connect_without_pauses)
    fill(old.process())
    copy, calls = copy_of(old, new), 0

    def cut_off(operation: str) -> None:
        nonlocal calls
        calls += operation == "BatchWriteItem"
        if calls > 3:
            raise KeyboardInterrupt

    before(copy._dynamodb, cut_off)
    with pytest.raises(KeyboardInterrupt):
        copy.run()
    found = items_of(new)
    assert main([old.table_name, new.table_name]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert items_of(new) == found, "the table of a stack that is in use is not written to"
    assert main([old.table_name, new.table_name, "--again"]) == 0
    assert "may still land" in capsys.readouterr().err
    check_same(new, old)


Send = Callable[[str, bytes], tuple[int, bytes]]


def left_over(send: Send) -> Send:
    """DynamoDB takes one item of each call."""

    def lambda_backend(operation: str, body: bytes) -> tuple[int, bytes]:
        if operation != "BatchWriteItem":
            return send(operation, body)
        [(table, requests)] = orjson.loads(body)["RequestItems"].items()
        send(operation, orjson.dumps({"RequestItems": {table: requests[:1]}}))
        rest = {table: requests[1:]} if requests[1:] else {}
        return 200, orjson.dumps({"UnprocessedItems": rest})

    return lambda_backend


def throttled(send: Send) -> Send:
    """For far longer than a request would wait; now and then there is no answer, either."""
    refused = 0

    def mostly_no(operation: str, body: bytes) -> tuple[int, bytes]:
        nonlocal refused
        refused += 1
        if refused % 20 == 1:
            return send(operation, body)
        if refused % 20 == 2:
            raise NoAnswer("injected")
        return refusal("ProvisionedThroughputExceededException")

    return mostly_no


@pytest.mark.parametrize("trouble", [left_over, throttled])
def test_a_copy_completes_although_the_new_table_throttles(
    old: World, new: World, trouble: Callable[[Send], Send], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(old.process())
    copy = copy_of(old, new)
    monkeypatch.setattr("tidemark.aws.retry.random.uniform", lambda *_: 0.0)
    copy._dynamodb.send = trouble(copy._dynamodb.send)
    copy.run()
    check_same(new, old)


def test_a_copy_ends_at_once_at_an_error_that_waiting_does_not_mend(old: World, new: World) -> None:
    copy = copy_of(old, new)
    copy._dynamodb.send = lambda *_: refusal("AccessDeniedException", message="because")
    with pytest.raises(CannotCopy, match="AccessDeniedException"):
        copy.run()


@pytest.mark.parametrize(
    ("fault", "said"),
    [("throttled", "ThrottlingException"), ("silent", "injected|not sent"), ("left over", "1 are left over")],
)
def test_a_copy_gives_up_after_half_an_hour_of_faults(old: World, new: World, fault: str, said: str) -> None:
    """However the table refuses. A service that the breaker takes for silent is tried again meanwhile."""
    copy: Any = copy_of(old, new)
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds * 100

    def send(operation: str, body: bytes) -> tuple[int, bytes]:
        if fault == "silent":
            raise NoAnswer("injected")
        if fault == "throttled":
            return refusal("ThrottlingException")
        if operation == "GetItem":
            return 200, b"{}"
        left = orjson.loads(body).get("RequestItems")
        return 200, orjson.dumps({"UnprocessedItems": left} if left else {"Count": 1, "Items": [ITEM]})

    copy._dynamodb.breaker = Breaker()
    copy._dynamodb.sleep, copy._dynamodb.now, copy._dynamodb.send = sleep, lambda: now, send
    with pytest.raises(CannotCopy, match=said):
        copy.run()
    assert now >= 30 * 60


ITEM = {"pk": {"S": "log/inc"}, "sk": {"S": "0"}}


# --- while the new stack's janitor is at work ----------------------------------------------


def pack_with(process: Process) -> int:
    """The new stack's packer comes by. How many packs it makes."""
    process.stores.packing = Packing(HOUR_MS, every_bytes=1, min_batches=2)
    return sweep(process.stores).packed


def a_stream_to_pack(process: Process) -> tuple[StreamKey, bytes]:
    process.stores.packing = Packing(HOUR_MS, every_bytes=1, min_batches=2)
    process.create(key := a_key("old"))
    for number in range(6):
        process.append(key, b"%d " % number)
    return key, process.read_all(key)


def after_what_is_due_was_written(copy: Copy, happens: Callable[[], object]) -> None:
    """Behind each call that writes entries of the janitor's queue."""
    send = copy._dynamodb.send

    def sending(operation: str, body: bytes) -> tuple[int, bytes]:
        reply = send(operation, body)
        if operation == "BatchWriteItem" and b'"due/' in body:
            happens()
        return reply

    copy._dynamodb.send = sending


def test_a_repeated_copy_leaves_to_the_janitor_what_the_janitor_has_begun(old: World, new: World) -> None:
    """The first copy had written some of what is due when it was cut off. The new stack has packed since: to
    write the batches once more would put a plain one over the pack, whose others are removed."""
    key, data = a_stream_to_pack(old.process())
    new.clock.advance(2 * HOUR_MS)
    process, copy = new.process(), copy_of(old, new)

    def cut_off() -> None:
        raise KeyboardInterrupt

    after_what_is_due_was_written(copy, cut_off)
    with pytest.raises(KeyboardInterrupt):
        copy.run()
    assert pack_with(process) == 1
    written = copy_of(old, new)
    kinds = kinds_written(written)
    written.run()
    assert set(kinds) == {"due"}
    assert new.process().read_all(key) == data
    assert pack_with(process) == 0
    assert new.process().read_all(key) == data


def test_a_late_copy_of_a_write_comes_before_the_janitor_does(old: World, new: World) -> None:
    """A write got no answer and was sent again; the first one lands fourteen minutes later. No entry of the
    janitor's queue is written before that, so nothing was packed, ended or removed yet."""
    key, data = a_stream_to_pack(old.process())
    new.clock.advance(2 * HOUR_MS)
    process, copy = new.process(), copy_of(old, new)
    send, late = copy._dynamodb.send, list[bytes]()

    def unanswered_once(operation: str, body: bytes) -> tuple[int, bytes]:
        if operation == "BatchWriteItem" and not late and b'"log/' in body:
            late.append(body)
            raise NoAnswer("injected")
        return send(operation, body)

    def sleep(seconds: float) -> None:
        if seconds > 60 * 14:
            assert pack_with(process) == 0, "nothing is due yet"
            send("BatchWriteItem", late[0])

    copy._dynamodb.send, copy._dynamodb.sleep = unanswered_once, sleep
    told: list[str] = []
    copy.report = told.append
    copy.run()
    assert [text.rpartition(" in ")[2] for text in told] == ["15 minutes"]
    assert pack_with(process) == 1
    assert new.process().read_all(key) == data


def test_a_call_that_is_sent_again_for_long_is_told(old: World, new: World) -> None:
    process, seconds = old.process(), itertools.count(step=1.0)
    process.dynamodb.now = lambda: next(seconds)
    process.dynamodb.sleep = lambda _: None
    copy = Copy(process.dynamodb, old.table_name, new.table_name)
    told: list[str] = []
    copy.report = told.append
    answer, refusals = process.dynamodb.send, iter(range(12))
    process.dynamodb.send = lambda *call: (
        answer(*call) if next(refusals, None) is None else refusal("ProvisionedThroughputExceededException")
    )
    assert copy.is_empty()
    assert told
    assert "ProvisionedThroughputExceeded" in told[0]


def test_a_table_of_a_later_release_is_not_copied(old: World, new: World) -> None:
    old.process().stores.table.put(encode_format(FORMAT_EPOCH + 1))
    with pytest.raises(CannotCopy, match="too old"):
        copy_of(old, new).run()
    assert items_of(new) == {}
