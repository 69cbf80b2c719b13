"""moto's server gets one request at a time: by itself it lets two racing conditional writes succeed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

moto_server = pytest.importorskip("tidemark.local.moto_server", reason="moto is not installed")

RECEIVE = {"HTTP_X_AMZ_TARGET": "AmazonSQS.ReceiveMessage"}
PUT = {"HTTP_X_AMZ_TARGET": "DynamoDB_20120810.PutItem"}


def no_response(*_: Any) -> None:
    """A WSGI application must be given something to begin its response with."""


def test_writes_run_one_after_the_other() -> None:
    inside, most = 0, 0

    def application(_environ: dict[str, Any], _start: Callable[..., Any]) -> Iterable[bytes]:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.02)
        inside -= 1
        return [b""]

    guarded = moto_server.OneAtATime(application)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: guarded(PUT, no_response), range(12)))
    assert most == 1


def test_a_wait_for_a_message_does_not_stop_a_write() -> None:
    written = threading.Event()

    def application(environ: dict[str, Any], _start: Callable[..., Any]) -> Iterable[bytes]:
        if environ == RECEIVE:
            assert written.wait(60), "the write waits for the message"
        else:
            written.set()
        return [b"done"]

    guarded = moto_server.OneAtATime(application)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(guarded, RECEIVE, no_response)
        assert list(guarded(PUT, no_response)) == [b"done"]
        assert list(received.result()) == [b"done"]
