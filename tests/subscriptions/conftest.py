"""A fresh table and bucket for each test."""

from __future__ import annotations

import pytest

from tests.subscriptions.scene import Scene
from tests.support import make_world
from tidemark.local.engines import LocalServices


@pytest.fixture
def scene(services: LocalServices) -> Scene:
    return Scene(make_world(services))
