"""The sample events, which `sam local invoke` uses too, through the handlers they are meant for."""

import json
from collections.abc import Iterator

import pytest

from tests.lambdas.functions import Functions, load_event

STREAM = "/v1/stream/tides/cuxhaven"
RAW = "/v1/stream/tides/gauge-raw"


@pytest.fixture
def fresh(functions: Functions) -> Iterator[Functions]:
    """Neither of the events' streams exists, before and after."""
    yield functions
    for path in (STREAM, RAW):
        event = load_event("delete")
        event["rawPath"] = event["requestContext"]["http"]["path"] = path
        functions.raw(event)


def test_the_sample_events_in_order_are_a_whole_session(fresh: Functions) -> None:
    created = fresh(load_event("put-create"))
    assert created.status == 201
    assert created["location"] == f"https://{load_event('put-create')['headers']['host']}{STREAM}"
    assert created["content-type"] == "application/json"
    assert fresh(load_event("put-create")).status == 200

    appended = fresh(load_event("post-append"))
    assert (appended.status, appended.body) == (204, b"")
    sent = json.loads(load_event("post-append")["body"])

    read = fresh(load_event("get-catch-up"))
    assert (read.status, read["content-type"], read["stream-up-to-date"]) == (200, "application/json", "true")
    messages = read.json
    assert messages[-len(sent) :] == sent
    assert read.next_offset == appended.next_offset

    looked = fresh(load_event("head"))
    assert (looked.status, looked.body, looked.next_offset) == (200, b"", appended.next_offset)

    polled = fresh(load_event("get-long-poll"))
    assert polled.status in {200, 204}
    assert polled["stream-cursor"]

    listened = fresh(load_event("get-sse"))
    assert listened["content-type"] == "text/event-stream"
    data, control = listened.events
    assert (data.type, json.loads(data.data)) == ("data", messages)
    assert json.loads(control.data)["streamNextOffset"] == appended.next_offset

    assert fresh(load_event("delete")).status == 204
    assert fresh(load_event("get-catch-up")).status == 404
    assert fresh(load_event("delete")).status == 404
