"""A fresh table for each module."""

from __future__ import annotations

import pytest

from tests.support import World, make_world
from tidemark.local.engines import LocalServices


@pytest.fixture(scope="module")
def world(services: LocalServices) -> World:
    return make_world(services)
