"""Fixtures for every test: the engines, started once and kept in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tidemark.local.engines import LocalServices


@pytest.fixture(scope="session")
def services() -> Iterator[LocalServices]:
    """DynamoDB, its Streams, S3 and SQS in memory, found by every boto3 client made while it lives.

    Make what a test needs with `services.create_table(name)` and `services.create_bucket(name)`.
    """
    with LocalServices(in_memory=True) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setitem(os.environ, name, value)
        # Functions are loaded as they are deployed, and refuse to be open unless asked by name.
        patch.setitem(os.environ, "ALLOW_ANONYMOUS", "true")
        yield running
