"""Carrying requests out by the use cases, and writing down what they answer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, singledispatch
from typing import Final

from tests.histories import history
from tidemark.protocol import errors
from tidemark.protocol.append import Kind, Outcome
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.expiry import Expiry, Retention
from tidemark.protocol.messages import ContentType, parse_content_type
from tidemark.protocol.offset import NOW, ReadFrom
from tidemark.protocol.producer import Claim
from tidemark.protocol.snapshot import parse_upload_id
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import AppendRequest, append
from tidemark.service.buckets import create_bucket, delete_bucket, describe_bucket
from tidemark.service.create import CreateRequest, create, create_with_append
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.retention import trim_below
from tidemark.service.snapshots import PublishRequest, publish_snapshot, read_snapshot
from tidemark.service.stores import Stores

BINARY: Final = parse_content_type("application/octet-stream")

_APPENDED: Final = {
    Kind.APPENDED: "appended",
    Kind.DUPLICATE: "duplicate",
    Kind.ALREADY_CLOSED: "already closed",
}
#: The header that carries the number a refusal names.
_NUMBERS: Final = {
    "RetentionGone": "Stream-Next-Offset",
    "HistoryGone": "Stream-Next-Offset",
    "AppendAfterClose": "Stream-Next-Offset",
    "OffsetBeyondTail": "Stream-Next-Offset",
    "SequenceGap": "Producer-Expected-Seq",
    "StaleEpoch": "Producer-Epoch",
}


class NotCarriedOut(Exception):
    """The answer says that nothing has changed: 429, or 503 of storage that cannot be asked."""


def perform(stores: Stores, request: history.Request) -> history.Answer | None:
    """None where the outcome is unknown (503). Raises NotCarriedOut."""
    return _answer(lambda: _perform(request, stores))


def perform_group(stores: Stores, requests: Sequence[history.Append]) -> list[history.Answer | None]:
    """Appends to one stream that share a write, as group commit makes them. Raises NotCarriedOut."""
    key = _key(requests[0].name)
    try:
        answers = append(stores, key, [_append_request(request) for request in requests])
    except errors.ProtocolError as refusal:
        answers = [refusal] * len(requests)
    return [_answer(partial(_append_answer, answer)) for answer in answers]


def _answer(call: Callable[[], history.Answer]) -> history.Answer | None:
    try:
        return call()
    except errors.OutcomeUnknown:
        return None
    except (errors.Busy, errors.StorageUnavailable, errors.StorageSilent) as refusal:
        raise NotCarriedOut(type(refusal).__name__) from refusal
    except errors.ProtocolError as refusal:
        return _refusal(refusal)


def _refusal(refusal: errors.ProtocolError) -> history.Answer:
    name = type(refusal).__name__
    number = refusal.headers.get(_NUMBERS.get(name, ""))
    return history.Answer(name, None if number is None else int(number))


def _key(name: str) -> StreamKey:
    return StreamKey(*name.split("/", 1))


@singledispatch
def _perform(request: history.Request, stores: Stores) -> history.Answer:
    raise NotImplementedError(type(request))


@_perform.register
def _create(request: history.Create, stores: Stores) -> history.Answer:
    fork = None
    if request.source is not None:
        fork = ForkPoint(_key(request.source), request.offset)
    content_type = None if request.content_type is None else parse_content_type(request.content_type)
    created = create(stores, _key(request.name), replace(_creation(request, content_type), fork=fork))
    tail = created.head.tail
    return history.Answer("created" if created.is_new else "exists", tail.offset, tail.closed)


def _creation(request: history.Create, content_type: ContentType | None) -> CreateRequest:
    expiry, retention = Expiry(ttl_seconds=request.ttl_seconds), Retention(size=request.keep_bytes)
    return CreateRequest(content_type, expiry, request.closed, request.body, retention=retention)


@_perform.register
def _append(request: history.Append, stores: Stores) -> history.Answer:
    key, asked, outcome = _key(request.name), _append_request(request), None
    while outcome is None:
        try:
            [outcome] = append(stores, key, [asked])
        except (errors.StreamNotFound, errors.SoftDeleted):
            if request.creates is None:
                raise
            creation = _creation(request.creates, BINARY)
            outcome = create_with_append(stores, key, replace(creation, first=asked))
    return _append_answer(outcome)


def _append_request(request: history.Append) -> AppendRequest:
    claim = Claim(*request.claim) if request.claim else None
    content_type = parse_content_type(request.content_type)
    return AppendRequest(content_type, request.body, request.close, request.seq, claim)


def _append_answer(answer: Outcome | errors.ProtocolError) -> history.Answer:
    if isinstance(answer, errors.ProtocolError):
        raise answer
    return history.Answer(_APPENDED[answer.kind], answer.next_offset, answer.closed)


@_perform.register
def _delete(request: history.Delete, stores: Stores) -> history.Answer:
    delete(stores, _key(request.name))
    return history.Answer("deleted")


@_perform.register
def _read(request: history.Read, stores: Stores) -> history.Answer:
    start: ReadFrom = NOW if request.offset is None else request.offset
    reading = read(stores, _key(request.name), start)
    page = reading.page
    assert page.up_to_date, "a page holds more than any history writes"
    return history.Answer("read", page.end, page.closed, reading.data if page.batches else b"")


@_perform.register
def _head(request: history.Head, stores: Stores) -> history.Answer:
    tail = load_head(stores, _key(request.name)).tail
    return history.Answer("head", tail.offset, tail.closed)


@_perform.register
def _publish(request: history.Publish, stores: Stores) -> history.Answer:
    key, upload = _key(request.name), parse_upload_id(request.upload)
    body = b"" if upload else request.body
    publish_snapshot(stores, key, PublishRequest(request.offset, BINARY, body, upload))
    return history.Answer("published")


@_perform.register
def _read_snapshot(request: history.ReadSnapshot, stores: Stores) -> history.Answer:
    reading = read_snapshot(stores, _key(request.name), request.offset)
    return history.Answer("snapshot", data=reading.data)


@_perform.register
def _trim(request: history.Trim, stores: Stores) -> history.Answer:
    has_let_go = trim_below(stores, _key(request.name), request.offset)
    return history.Answer("trimmed" if has_let_go else "nothing to let go of")


@_perform.register
def _create_bucket(request: history.CreateBucket, stores: Stores) -> history.Answer:
    create_bucket(stores, request.bucket)
    return history.Answer("created")


@_perform.register
def _delete_bucket(request: history.DeleteBucket, stores: Stores) -> history.Answer:
    delete_bucket(stores, request.bucket)
    return history.Answer("deleted")


@_perform.register
def _count_streams(request: history.CountStreams, stores: Stores) -> history.Answer:
    return history.Answer("bucket", describe_bucket(stores, request.bucket).streams)
