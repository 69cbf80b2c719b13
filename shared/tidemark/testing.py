"""Fixtures for tests of programs that use Tidemark: the extra `test`, and `test-aws` for `tidemark_aws`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def tidemark_url() -> Iterator[str]:
    """The address of a server in memory, in this process, empty for each test."""
    from tidemark.server.serve import server_in_memory

    with server_in_memory() as url:
        yield url


@pytest.fixture
def tidemark_aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The table, the bucket and the queue of a stack in ministack, empty for each test: the environment that
    a function of the stack has, which is set."""
    from tidemark.local.engines import LocalServices
    from tidemark.settings import Settings

    names = Settings()
    with LocalServices(engine="ministack") as services:
        services.create_table(names.table_name)
        services.create_bucket(names.bucket_name)
        queue_url = services.create_queue(f"{names.table_name}-subscriptions")
        environment = services.environment | {
            "TABLE_NAME": names.table_name,
            "BUCKET_NAME": names.bucket_name,
            "SUBSCRIPTIONS_QUEUE_URL": queue_url,
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield environment
