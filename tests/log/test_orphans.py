"""Objects in S3 that belong to nothing are removed, and no others."""

from __future__ import annotations

import pytest

from tests.support import HOUR_MS, JSON, Process, World, a_key, table_of
from tidemark.janitor.sweep import sweep
from tidemark.protocol.errors import Conflict
from tidemark.service.append import INLINE_BYTES
from tidemark.service.delete import delete

BODY = bytes(INLINE_BYTES + 1)


def blobs_of(process: Process) -> int:
    answer = process.s3.list_objects_v2(Bucket=table_of(process.stores).name)
    return int(answer["KeyCount"])


def test_the_body_of_a_refused_creation_is_removed(world: World) -> None:
    process, key = world.process(), a_key()
    process.create(key, content_type=JSON)
    with pytest.raises(Conflict):
        process.create(key, body=BODY)
    assert blobs_of(process) == 1
    world.clock.advance(2 * HOUR_MS)
    assert sweep(process.stores).orphans == 1
    assert blobs_of(process) == 0


def test_the_body_of_a_successful_creation_stays(world: World) -> None:
    process, key = world.process(), a_key()
    process.create(key, body=BODY)
    world.clock.advance(2 * HOUR_MS)
    assert sweep(process.stores).orphans == 0
    assert world.process().read_all(key) == BODY


def test_the_bodies_of_a_deleted_stream_are_removed(world: World) -> None:
    """Also those of appends that lost a race and are in no batch."""
    process, rival, key = world.process(), world.process(), a_key()
    process.create(key, body=BODY)
    process.append(key, BODY)
    process.stores.blobs.put(f"log/{process.create(key).head.record.incarnation}/lost", BODY)
    assert blobs_of(process) == 3
    delete(rival.stores, key)
    world.clock.advance(2 * HOUR_MS)
    sweep(process.stores)
    assert blobs_of(process) == 0
