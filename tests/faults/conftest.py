"""A fresh table and bucket for each test, and for a file of cut replies the proxies to them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults.cut_cases import Scene
from tests.faults.proxy import Proxy
from tests.support import World, make_world
from tidemark.local.engines import LocalServices


@pytest.fixture
def world(services: LocalServices) -> World:
    return make_world(services)


@pytest.fixture(scope="module")
def cut_scene(services: LocalServices) -> Iterator[Scene]:
    with (
        Proxy(os.environ["AWS_ENDPOINT_URL_DYNAMODB"]) as tables,
        Proxy(os.environ["AWS_ENDPOINT_URL_S3"]) as objects,
        pytest.MonkeyPatch.context() as patch,
    ):
        # Trying again takes no time.
        patch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
        made = Scene(make_world(services), tables, objects)
        yield made
