"""A fresh table, and the ways in over it, as long as a run lasts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.authorization.ways import WAYS, Functions
from tests.fuzz import events, frames, published
from tests.fuzz.subject import Subject
from tests.stack.engines import LocalServices
from tests.support import World, make_world
from tidemark.log.due import Packing
from tidemark.log.tails import RecentBatches
from tidemark.service.stores import connect
from tidemark.settings import Settings

#: Any two batches are packed, and any packs are packed again.
PACKING = Packing(0, every_bytes=1, min_batches=2, block_bytes=16)


@contextmanager
def fresh(services: LocalServices) -> Iterator[tuple[Subject, Settings]]:
    world: World = make_world(services)
    variables = {
        "TABLE_NAME": world.table_name,
        "BUCKET_NAME": world.bucket_name,
        "LONG_POLL_SECONDS": "0",
        "SSE_SECONDS": "0",
        "SSE_BUFFERED_SECONDS": "0",
        "ALLOW_ANONYMOUS": "true",
        "PACK_AFTER_SECONDS": "0",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        settings = Settings.from_environment(os.environ)
        stores = connect(settings)
        stores.recent = RecentBatches(0)
        stores.packing = PACKING
        yield Subject(stores), settings


def fuzz_published(services: LocalServices, requests: int, seed: int) -> Subject:
    with fresh(services) as (subject, settings), WAYS["local"](settings) as way:
        published.fuzz(subject, way, requests, seed)
    return subject


def read_published(services: LocalServices) -> dict[str, int]:
    with fresh(services) as (subject, settings), WAYS["local"](settings) as way:
        return dict(published.read_all(subject, way))


def fuzz_events(services: LocalServices, requests: int, seed: int) -> Subject:
    with fresh(services) as (subject, _):
        functions = Functions()
        try:
            events.fuzz(subject, functions, requests, seed)
        finally:
            functions.close()
    return subject


def fuzz_frames(services: LocalServices, requests: int, seed: int) -> Subject:
    with fresh(services) as (subject, settings):
        subject.statuses += frames.fuzz(subject, settings, requests, seed)
    return subject
