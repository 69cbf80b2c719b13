"""A log service that does one thing after the other.

`outcomes` says, for a request in a state, every answer that is right and the state that follows. There are
several where the protocol leaves the answer open, and where time is involved: a request under way while the
clock moves may see either time.

The model knows nothing of Tidemark's tables and caches. It is written from the protocol: create, append,
close, delete, fork, read, HEAD, and the extensions' buckets and snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import TypeAlias

from tests.histories import history

Outcome: TypeAlias = "tuple[history.Answer, State]"
Times: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Producer:
    """The last append accepted from a producer, and the offset after it."""

    epoch: int
    seq: int
    end: int


@dataclass(frozen=True, slots=True)
class Stream:
    """`ends` are the offsets at which messages end. `references` counts the forks that were made of the
    stream and live; a stream that is deleted while there are some is kept for them, and its name is not
    free (§4.2)."""

    content_type: str
    data: bytes
    ends: tuple[int, ...]
    touched_ms: int
    closed: bool = False
    ttl_seconds: int | None = None
    stream_seq: str | None = None
    producers: tuple[tuple[str, Producer], ...] = ()
    closed_by: history.Claim | None = None
    source: str | None = None
    fork_offset: int = 0
    references: int = 0
    deleted: bool = False
    snapshot: tuple[int, bytes] | None = None
    retained: int = 0
    keep_bytes: int | None = None

    @property
    def tail(self) -> int:
        return len(self.data)

    def producer(self, producer_id: str) -> Producer | None:
        return dict(self.producers).get(producer_id)

    def is_expired(self, now_ms: int) -> bool:
        """A stream lives a twentieth of its window longer: reads renew it in steps of that."""
        if self.ttl_seconds is None:
            return False
        return now_ms >= self.touched_ms + self.ttl_seconds * 1000 + self.renewal_ms

    @property
    def renewal_ms(self) -> int:
        return 0 if self.ttl_seconds is None else self.ttl_seconds * 50


@dataclass(frozen=True, slots=True)
class State:
    """Streams by name, in the names' order, and the buckets that were made."""

    streams: tuple[tuple[str, Stream], ...] = ()
    buckets: frozenset[str] = frozenset()

    def get(self, name: str) -> Stream | None:
        for found, stream in self.streams:
            if found == name:
                return stream
        return None

    def put(self, name: str, stream: Stream) -> State:
        others = [pair for pair in self.streams if pair[0] != name]
        streams = tuple(sorted([*others, (name, stream)], key=lambda pair: pair[0]))
        return replace(self, streams=streams)

    def drop(self, name: str) -> State:
        return replace(self, streams=tuple(pair for pair in self.streams if pair[0] != name))


START = State()


def outcomes(state: State, request: history.Request, clock_ms: Times = (0,)) -> Iterator[Outcome]:
    """Every right answer to the request, with the state after it."""
    for settled in _with_forks_ended(state, max(clock_ms)):
        for limited in _with_limits_kept(settled):
            for now_ms in clock_ms:
                yield from _outcomes(request, limited, now_ms, tuple(t for t in clock_ms if t >= now_ms))


def _with_forks_ended(state: State, now_ms: int) -> Iterator[State]:
    """An expired fork holds its source until somebody ends it, and a source that was deleted before holds
    its own source until somebody removes it. Both may happen at any time."""
    yield state
    for name, stream in state.streams:
        is_over = stream.deleted and not stream.references
        if is_over or (stream.source is not None and not stream.deleted and stream.is_expired(now_ms)):
            yield from _with_forks_ended(_end(state, name), now_ms)


def _end(state: State, name: str) -> State:
    """Delete, expire or remove: the last fork leaves a source that was deleted before without references,
    so that it answers 404 from then on. One that is further up the chain follows behind the answer."""
    stream = state.get(name)
    assert stream is not None
    if stream.references:
        return state.put(name, replace(stream, deleted=True))
    state = state.drop(name)
    if stream.source is None:
        return state
    source = state.get(stream.source)
    assert source is not None, "a source stays as long as a fork of it"
    return state.put(stream.source, replace(source, references=source.references - 1))


def _found(state: State, name: str, now_ms: int) -> Stream | history.Answer:
    """The stream, or why it is not there."""
    stream = state.get(name)
    if stream is not None and not stream.deleted and not stream.is_expired(now_ms):
        return stream
    return history.Answer("SoftDeleted" if stream is not None and stream.references else "StreamNotFound")


@singledispatch
def _outcomes(request: history.Request, state: State, now_ms: int, later_ms: Times) -> Iterator[Outcome]:
    """`later_ms`: the times at which the change may be recorded, `now_ms` and those after it."""
    raise NotImplementedError(type(request))


# --- streams ------------------------------------------------------------------------


@_outcomes.register
def _create(request: history.Create, state: State, now_ms: int, later_ms: Times) -> Iterator[Outcome]:
    if request.source is not None:
        yield from _fork_refusals(request, state, now_ms)
    bucket = history.bucket_of(request.name)
    if bucket != "v1" and bucket not in state.buckets:
        yield history.Answer("BucketNotFound"), state
        return
    stream = state.get(request.name)
    if stream is None or (not stream.references and (stream.deleted or stream.is_expired(now_ms))):
        if stream is not None:
            state = _end(state, request.name)
        yield from _created(request, state, now_ms, later_ms)
    elif stream.deleted or stream.is_expired(now_ms) or not _is_same(request, stream):
        yield history.Answer("Conflict"), state
    else:
        yield history.Answer("exists", stream.tail, stream.closed), state


def _is_same(request: history.Create, stream: Stream) -> bool:
    """What a fork leaves to its source matches whatever the source had."""
    inherits = request.source is not None
    return (
        (request.content_type in {None, stream.content_type})
        and (request.ttl_seconds == stream.ttl_seconds or (inherits and request.ttl_seconds is None))
        and request.closed == stream.closed
        and request.source == stream.source
        and (not inherits or request.offset == stream.fork_offset)
        and request.keep_bytes == stream.keep_bytes
    )


def _fork_refusals(request: history.Create, state: State, now_ms: int) -> Iterator[Outcome]:
    """What is wrong with the source may be said before or after a look at the name itself."""
    assert request.source is not None
    source = _found(state, request.source, now_ms)
    if isinstance(source, history.Answer):
        yield history.Answer("Conflict" if source.outcome == "SoftDeleted" else "StreamNotFound"), state
    elif request.offset < source.retained:
        yield history.Answer("RetentionGone", source.retained), state
    elif request.offset > source.tail:
        yield history.Answer("Malformed"), state


def _created(request: history.Create, state: State, now_ms: int, later_ms: Times) -> Iterator[Outcome]:
    for touched_ms in later_ms:
        stream = _new_stream(request, state, now_ms, touched_ms)
        if stream is None:
            return
        after = state.put(request.name, stream)
        if request.source is not None:
            source = state.get(request.source)
            assert source is not None
            after = after.put(request.source, replace(source, references=source.references + 1))
        yield history.Answer("created", stream.tail, stream.closed), after


def _new_stream(request: history.Create, state: State, now_ms: int, touched_ms: int) -> Stream | None:
    """None where it cannot be made, because its source cannot be forked there."""
    ends = (len(request.body),) if request.body else ()
    if request.source is None:
        assert request.content_type is not None, "only a fork may leave it open"
        return Stream(
            request.content_type,
            request.body,
            ends,
            touched_ms,
            request.closed,
            request.ttl_seconds,
            keep_bytes=request.keep_bytes,
        )
    source = _found(state, request.source, now_ms)
    if isinstance(source, history.Answer) or not source.retained <= request.offset <= source.tail:
        return None
    inherited = tuple(end for end in source.ends if end < request.offset)
    if request.offset:
        inherited = (*inherited, request.offset)
    ttl_seconds = source.ttl_seconds if request.ttl_seconds is None else request.ttl_seconds
    data = source.data[: request.offset] + request.body
    return Stream(
        source.content_type,
        data,
        (*inherited, len(data)) if request.body else inherited,
        touched_ms,
        request.closed,
        ttl_seconds,
        source=request.source,
        fork_offset=request.offset,
        snapshot=source.snapshot,
        retained=source.retained,
        keep_bytes=request.keep_bytes,
    )


@_outcomes.register
def _append(request: history.Append, state: State, now_ms: int, later_ms: Times) -> Iterator[Outcome]:
    stream = _found(state, request.name, now_ms)
    if isinstance(stream, history.Answer):
        first = _first_append(request, state, now_ms, later_ms)
        yield from [(stream, state)] if request.creates is None else first
    elif stream.closed:
        yield _answer_of_closed(stream, request), state
    elif (refusal := _append_refusal(stream, request)) is not None:
        yield refusal, state
    else:
        for touched_ms in later_ms:
            after = _appended(stream, request, touched_ms)
            yield history.Answer("appended", after.tail, after.closed), state.put(request.name, after)


def _first_append(request: history.Append, state: State, now_ms: int, later_ms: Times) -> Iterator[Outcome]:
    """The creation with its append; a refused append creates nothing."""
    assert request.creates is not None
    empty = _new_stream(request.creates, state, now_ms, now_ms)
    assert empty is not None, "only a fork cannot be made"
    if (refusal := _append_refusal(empty, request)) is not None:
        yield refusal, state
        return
    for answer, after in _create(request.creates, state, now_ms, later_ms):
        if answer.outcome == "created":
            made = after.get(request.name)
            assert made is not None
            made = _appended(made, request, made.touched_ms)
            yield history.Answer("appended", made.tail, made.closed), after.put(request.name, made)
        else:
            yield answer, after


def _answer_of_closed(stream: Stream, request: history.Append) -> history.Answer:
    """§5.2.1: the request that closed the stream may be repeated, no other append is taken."""
    if request.claim is None:
        if request.close and not request.body:
            return history.Answer("already closed", stream.tail, closed=True)
        return history.Answer("AppendAfterClose", stream.tail)
    producer = stream.producer(request.claim[0])
    if request.claim == stream.closed_by:
        return _duplicate(stream, request.claim)
    if producer is not None and request.claim[1] < producer.epoch:
        return history.Answer("StaleEpoch", producer.epoch)
    return history.Answer("AppendAfterClose", stream.tail)


def _append_refusal(stream: Stream, request: history.Append) -> history.Answer | None:
    """Of an open stream, in the order of §5.2 and §5.2.1; None where it is to be written."""
    if not request.body and not request.close:
        return history.Answer("Malformed")
    if request.body and request.content_type != stream.content_type:
        return history.Answer("ContentTypeMismatch")
    if request.claim is not None:
        answer = _producer_refusal(stream, request.claim)
        if answer is not None:
            return answer
    if request.seq is not None and stream.stream_seq is not None and request.seq <= stream.stream_seq:
        return history.Answer("SequenceRegression")
    return None


def _producer_refusal(stream: Stream, claim: history.Claim) -> history.Answer | None:
    producer_id, epoch, seq = claim
    producer = stream.producer(producer_id)
    if producer is None:
        return history.Answer("SequenceGap", 0) if seq else None
    if epoch < producer.epoch:
        return history.Answer("StaleEpoch", producer.epoch)
    if epoch > producer.epoch:
        return history.Answer("Malformed") if seq else None
    if seq > producer.seq + 1:
        return history.Answer("SequenceGap", producer.seq + 1)
    return _duplicate(stream, claim) if seq <= producer.seq else None


def _duplicate(stream: Stream, claim: history.Claim) -> history.Answer:
    """With the original's offset where that is the producer's latest append, else with the tail."""
    producer = stream.producer(claim[0])
    is_latest = producer is not None and producer.seq == claim[2]
    return history.Answer("duplicate", producer.end if producer and is_latest else stream.tail, stream.closed)


def _appended(stream: Stream, request: history.Append, touched_ms: int) -> Stream:
    data = stream.data + request.body
    producers = dict(stream.producers)
    if request.claim is not None:
        producer_id, epoch, seq = request.claim
        producers[producer_id] = Producer(epoch, seq, len(data))
    return replace(
        stream,
        data=data,
        ends=(*stream.ends, len(data)) if request.body else stream.ends,
        touched_ms=max(touched_ms, stream.touched_ms),
        closed=request.close,
        stream_seq=stream.stream_seq if request.seq is None else request.seq,
        producers=tuple(sorted(producers.items())),
        closed_by=request.claim if request.close else None,
    )


@_outcomes.register
def _delete(request: history.Delete, state: State, now_ms: int, later_ms: Times) -> Iterator[Outcome]:
    stream = _found(state, request.name, now_ms)
    if isinstance(stream, history.Answer):
        yield stream, state
    else:
        yield history.Answer("deleted"), _end(state, request.name)


@_outcomes.register
def _read(request: history.Read, state: State, now_ms: int, later_ms: Times) -> Iterator[Outcome]:
    stream = _found(state, request.name, now_ms)
    if isinstance(stream, history.Answer):
        yield stream, state
        return
    start = stream.tail if request.offset is None else request.offset
    if start < stream.retained:
        yield history.Answer("RetentionGone", stream.retained), state
    if start > stream.tail:
        yield history.Answer("HistoryGone", stream.retained), state
    else:
        # What is no longer retained is there for an hour still: a reader may be on its way through it.
        answer = history.Answer("read", stream.tail, stream.closed, stream.data[start:])
        for renewed in _renewed(stream, now_ms):
            yield answer, state.put(request.name, renewed)


def _renewed(stream: Stream, now_ms: int) -> Iterator[Stream]:
    """A read renews a sliding expiry (§5.1), and need not record it before a twentieth has passed."""
    if stream.ttl_seconds is None or now_ms - stream.touched_ms < stream.renewal_ms:
        yield stream
    if stream.ttl_seconds is not None and now_ms > stream.touched_ms:
        yield replace(stream, touched_ms=now_ms)


@_outcomes.register
def _head(request: history.Head, state: State, now_ms: int, later_ms: Times) -> Iterator[Outcome]:
    stream = _found(state, request.name, now_ms)
    if isinstance(stream, history.Answer):
        yield stream, state
    else:
        yield history.Answer("head", stream.tail, stream.closed), state


# --- snapshots ----------------------------------------------------------------------


@_outcomes.register
def _publish(request: history.Publish, state: State, now_ms: int, later_ms: Times) -> Iterator[Outcome]:
    stream = _found(state, request.name, now_ms)
    if request.upload is not None:
        # An upload belongs to the stream of that name that was there when it began.
        yield history.Answer("UploadNotFound"), state
    if isinstance(stream, history.Answer):
        yield stream, state
    elif request.offset < stream.retained:
        yield history.Answer("RetentionGone", stream.retained), state
    elif request.offset > stream.tail:
        yield history.Answer("OffsetBeyondTail", stream.tail), state
    elif request.offset not in {0, *stream.ends}:
        yield history.Answer("Malformed"), state
    else:
        for touched_ms in later_ms:
            after = replace(
                stream,
                snapshot=(request.offset, request.body),
                retained=request.offset,
                touched_ms=max(touched_ms, stream.touched_ms),
            )
            yield history.Answer("published"), state.put(request.name, after)


@_outcomes.register
def _read_snapshot(
    request: history.ReadSnapshot, state: State, now_ms: int, later_ms: Times
) -> Iterator[Outcome]:
    stream = _found(state, request.name, now_ms)
    if isinstance(stream, history.Answer):
        yield stream, state
    elif stream.snapshot is None or stream.snapshot[0] != request.offset:
        yield history.Answer("SnapshotNotFound"), state
    else:
        for renewed in _renewed(stream, now_ms):
            yield history.Answer("snapshot", data=stream.snapshot[1]), state.put(request.name, renewed)


# --- retention ----------------------------------------------------------------------


@_outcomes.register
def _trim(request: history.Trim, state: State, now_ms: int, later_ms: Times) -> Iterator[Outcome]:
    """No use of the stream: it renews nothing."""
    stream = _found(state, request.name, now_ms)
    if isinstance(stream, history.Answer):
        yield stream, state
    elif request.offset < stream.retained:
        yield history.Answer("nothing to let go of"), state
    elif request.offset > stream.tail:
        yield history.Answer("OffsetBeyondTail", stream.tail), state
    elif request.offset not in {0, *stream.ends}:
        yield history.Answer("Malformed"), state
    elif stream.snapshot is not None:
        yield history.Answer("Conflict"), state
    else:
        if request.offset == stream.retained:
            yield history.Answer("nothing to let go of"), state
        # Of two that trim to one offset at once, both may be told so.
        yield history.Answer("trimmed"), state.put(request.name, replace(stream, retained=request.offset))


def _with_limits_kept(state: State) -> Iterator[State]:
    """The janitor may come at any time, or not: then a stream with a limit keeps that many bytes, or more
    where it has looked before the last appends."""
    yield state
    for name, stream in state.streams:
        if stream.keep_bytes is None or stream.snapshot is not None or stream.deleted:
            continue
        for end in stream.ends:
            if stream.retained < end <= stream.tail - stream.keep_bytes:
                yield from _with_limits_kept(state.put(name, replace(stream, retained=end)))


# --- buckets ------------------------------------------------------------------------


@_outcomes.register
def _create_bucket(
    request: history.CreateBucket, state: State, now_ms: int, later_ms: Times
) -> Iterator[Outcome]:
    if request.bucket in state.buckets:
        yield history.Answer("BucketExists"), state
    else:
        yield history.Answer("created"), replace(state, buckets=state.buckets | {request.bucket})


@_outcomes.register
def _delete_bucket(
    request: history.DeleteBucket, state: State, now_ms: int, later_ms: Times
) -> Iterator[Outcome]:
    if request.bucket not in state.buckets:
        yield history.Answer("BucketNotFound"), state
    elif _alive(state, request.bucket, now_ms):
        yield history.Answer("BucketNotEmpty"), state
    else:
        yield history.Answer("deleted"), replace(state, buckets=state.buckets - {request.bucket})


@_outcomes.register
def _count_streams(
    request: history.CountStreams, state: State, now_ms: int, later_ms: Times
) -> Iterator[Outcome]:
    if request.bucket not in state.buckets:
        yield history.Answer("BucketNotFound"), state
    else:
        yield history.Answer("bucket", len(_alive(state, request.bucket, now_ms))), state


def _alive(state: State, bucket: str, now_ms: int) -> list[str]:
    return [
        name
        for name, stream in state.streams
        if history.bucket_of(name) == bucket and not stream.deleted and not stream.is_expired(now_ms)
    ]
