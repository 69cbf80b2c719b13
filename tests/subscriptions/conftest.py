"""A fresh table and bucket for each test."""

import pytest

from tests.stack.engines import LocalServices
from tests.subscriptions.scene import Scene
from tests.support import make_world


@pytest.fixture
def scene(services: LocalServices) -> Scene:
    return Scene(make_world(services))
