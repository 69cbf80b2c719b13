"""A fresh table and bucket for each test."""

import pytest

from tests.stack.engines import LocalServices
from tests.support import World, make_world


@pytest.fixture
def world(services: LocalServices) -> World:
    return make_world(services)
