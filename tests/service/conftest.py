"""A fresh table and bucket for each test."""

from __future__ import annotations

import pytest

from tests.support import World, make_world
from tidemark.local.engines import LocalServices


@pytest.fixture
def world(services: LocalServices) -> World:
    return make_world(services)
