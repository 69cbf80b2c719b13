"""A watch: its stream, and the tail of the stream, after the registration."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import World, a_key, filled
from tidemark.log.records import StreamRecord
from tidemark.log.schema import log_pk
from tidemark.protocol.errors import SoftDeleted, StreamNotFound
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.delete import delete
from tidemark.service.stores import Stores
from tidemark.service.watch import begin_watch, begin_watches, load_tail


def begin_one_of_several(stores: Stores, key: StreamKey, register: Callable[[str], float]) -> Any:
    return begin_watches(stores, [key], lambda records: register(records[0].incarnation))[key]


@pytest.mark.parametrize("begin", [begin_watch, begin_one_of_several])
def test_a_stream_created_again_is_registered_again(world: World, begin: Callable[..., Any]) -> None:
    process, key = world.process(), a_key()
    created = [process.create(key, body=b"old").head.record.incarnation]
    registered = list[str]()

    def register(incarnation: str) -> float:
        registered.append(incarnation)
        if len(registered) == 1:
            delete(process.stores, key)
            created.append(process.create(key).head.record.incarnation)
        return 7.0

    watched = begin(world.process().stores, key, register)
    assert registered == created
    assert (watched.record.incarnation, watched.tail) == (created[1], Tail(0))


@pytest.mark.parametrize("told", [None, 3])
def test_the_tail_of_a_fork_without_writes_is_where_it_was_forked(world: World, told: int | None) -> None:
    process, source, fork = world.process(), a_key(), a_key()
    process.create(source, body=b"abcd")
    process.fork(fork, source, 3)
    watched = begin_watch(process.stores, fork, lambda _: 0.0)
    assert watched.tail.offset == 3
    assert load_tail(process.stores, watched.record, told) == (Tail(3), None)


def test_a_stream_that_is_gone_is_not_registered(world: World) -> None:
    process, deleted, never = world.process(), a_key(), a_key()
    process.create(deleted)
    process.fork(a_key(), deleted)
    delete(process.stores, deleted)
    registered = list[StreamRecord]()
    found = begin_watches(process.stores, [deleted, never], registered.extend)
    assert [type(found[key]) for key in (deleted, never)] == [SoftDeleted, StreamNotFound]
    assert registered == []


def test_news_begin_behind_a_gap_in_the_log(world: World) -> None:
    process, key = filled(world, b"ab", b"cd", b"ef")
    record, table = process.create(key).head.record, process.stores.table
    lost = table.query(log_pk(key, record.incarnation))[0][1]
    table.delete_many([{name: lost[name] for name in ("pk", "sk")}])
    tail, news = load_tail(process.stores, record, 0)
    assert news is not None
    assert (tail.offset, news.start, news.stored) == (6, 4, b"ef")
