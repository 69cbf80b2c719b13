"""A fresh table and bucket for each test, and what takes a rule away."""

from __future__ import annotations

import pytest

from tests.support import World, make_world
from tidemark.local.engines import LocalServices
from tidemark.log import packs
from tidemark.log.records import StreamRecord
from tidemark.log.schema import INCARNATION
from tidemark.log.table import Condition, equals


@pytest.fixture
def world(services: LocalServices) -> World:
    return make_world(services)


@pytest.fixture
def without_the_check_of_the_streams_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack is committed wherever its stream's packs end, and whatever is retained of it."""

    def only_live(record: StreamRecord, _start: int) -> Condition:
        return equals(INCARNATION, record.incarnation)

    monkeypatch.setattr(packs, "_if_unmoved", only_live)
