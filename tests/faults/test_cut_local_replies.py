"""Replies that are cut in their headers, to what only the local stack calls."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.faults.proxy import Proxy, Reply, Sent
from tests.support import World, make_world
from tidemark.local.engines import LocalServices, create_queue


def first_of_each_cut(proxy: Proxy) -> None:
    """Spoil the first reply to each operation."""
    cut: set[str] = set()

    def spoil(reply: Reply) -> Sent:
        if reply.operation in cut:
            return Sent(reply.raw)
        cut.add(reply.operation)
        return Sent(reply.raw[: reply.raw.index(b"\r\n") + 2], close=True)

    proxy.spoil = spoil


@pytest.fixture
def world(services: LocalServices, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Behind proxies that spoil replies, once the table is made."""
    made = make_world(services)
    with ExitStack() as stack:
        for service in ("DYNAMODB", "SQS"):
            name = f"AWS_ENDPOINT_URL_{service}"
            proxy = stack.enter_context(Proxy(os.environ[name]))
            first_of_each_cut(proxy)
            monkeypatch.setitem(os.environ, name, proxy.endpoint)
        yield made


def test_a_queue_is_created_though_replies_are_cut(world: World, services: LocalServices) -> None:
    environment = {name: os.environ[name] for name in services.environment}
    assert world.table_name in create_queue(f"{world.table_name}-queue", environment)
