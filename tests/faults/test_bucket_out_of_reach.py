"""The bucket is gone, silent, or closed to us: large bodies wait, everything else goes on.

The functions' own handlers, given the events that AWS sends.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator

import pytest

from tests.faults.aws import OUT_OF_REACH, Breakable, Fault
from tests.http.asgi import Answer
from tests.lambdas.functions import Functions, http_event
from tests.support import World, make_world
from tidemark.aws.clients import s3_client
from tidemark.aws.s3 import connect_objects
from tidemark.local.engines import LocalServices

_serial = itertools.count()
TEXT = {"content-type": "text/plain"}
SMALL, LARGE = b"small", b"x" * 70_000
NO_CONNECTION = OUT_OF_REACH["no connection"]


@pytest.fixture(scope="module")
def world(services: LocalServices) -> World:
    return make_world(services)


@pytest.fixture(scope="module")
def s3(services: LocalServices) -> Breakable:
    return Breakable(s3_client())


@pytest.fixture(scope="module")
def functions(world: World, s3: Breakable) -> Iterator[Functions]:
    running = Functions()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TABLE_NAME", world.table_name)
        patch.setenv("BUCKET_NAME", world.bucket_name)
        patch.setenv("LONG_POLL_SECONDS", "0")
        patch.setenv("SSE_BUFFERED_SECONDS", "0")
        # Both ways to the bucket.
        patch.setattr("tidemark.service.stores.s3_client", lambda: s3.client)
        patch.setattr(
            "tidemark.service.stores.connect_objects", lambda *given: s3.breaking(connect_objects(*given))
        )
        # However slow this machine is: the breaker has tests of its own.
        patch.setattr("tidemark.aws.retry.SILENT_SECONDS", math.inf)
        # Trying again takes no time.
        patch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
        running.start()
        yield running
        running.stop()


@pytest.fixture
def path() -> str:
    return f"/v1/stream/bucket-gone/{next(_serial)}"


def put(path: str, body: bytes = b"", **headers: str) -> dict[str, object]:
    return http_event("PUT", path, headers=TEXT | headers, body=body)


def post(path: str, body: bytes, **headers: str) -> dict[str, object]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http_event("POST", path, headers=TEXT | named, body=body)


def get(path: str, query: str = "offset=-1") -> dict[str, object]:
    return http_event("GET", path, query)


def check_out_of_reach(answer: Answer) -> None:
    """503, when to come again, and that nothing has changed: no stack trace, and not "unknown"."""
    assert (answer.status, answer["retry-after"]) == (503, "5"), answer
    assert answer.json == {"error": "Storage cannot be reached, and nothing has changed; try again"}


@pytest.mark.parametrize("fault", OUT_OF_REACH.values(), ids=OUT_OF_REACH)
def test_a_large_append_gets_503_without_s3_and_lands_once_later(
    functions: Functions, s3: Breakable, path: str, fault: Fault
) -> None:
    """The body comes before the batch that points to it, so a refusal is a promise: nothing was written."""
    assert functions(put(path, SMALL)).status == 201
    append = post(path, LARGE, producer_id="p", producer_epoch="0", producer_seq="0")
    with s3.failing(fault):
        check_out_of_reach(functions(append))
        assert functions(http_event("HEAD", path)).next_offset == f"{5:016d}"
        assert functions(post(path, SMALL)).status == 204, "the next writer is not held up"
    assert functions(append).status == 200
    assert functions(append).status == 204, "it was repeated"
    assert functions(get(path)).body == SMALL + SMALL + LARGE


def test_small_appends_and_reads_work_without_s3(functions: Functions, s3: Breakable, path: str) -> None:
    with s3.failing(NO_CONNECTION):
        assert functions(put(path)).status == 201
        assert functions(post(path, SMALL)).status == 204
        assert functions(get(path)).body == SMALL
        assert functions(get(path, "offset=-1&live=long-poll")).body == SMALL
        assert functions(get(path, "offset=-1&live=sse")).status == 200
        assert functions(http_event("DELETE", path)).status == 204


def test_a_creation_with_a_large_body_gets_503_without_s3_and_creates_nothing(
    functions: Functions, s3: Breakable, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the failure, and the response does not."""
    caplog.set_level(logging.WARNING)
    with s3.failing(OUT_OF_REACH["forbidden"]):
        check_out_of_reach(functions(put(path, LARGE)))
        assert functions(http_event("HEAD", path)).status == 404
    assert "AccessDenied" in caplog.text
    assert "PutObject" in caplog.text
    assert functions(put(path, LARGE)).status == 201
    assert functions(get(path)).body == LARGE


@pytest.mark.parametrize("query", ["", "&live=long-poll", "&live=sse"])
def test_only_pages_with_a_large_body_get_503_without_s3(
    functions: Functions, s3: Breakable, path: str, query: str
) -> None:
    functions(put(path, LARGE))
    functions(post(path, SMALL))
    behind = f"offset={len(LARGE):016d}{query}"
    # An environment of its own: this one has the bytes in memory, because it wrote them.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(functions.handlers, "read", functions.load("read"))
        with s3.failing(NO_CONNECTION):
            check_out_of_reach(functions(get(path, f"offset=-1{query}")))
            assert SMALL in functions(get(path, behind)).body
            assert functions(get(path, "offset=now")).status == 200
        assert functions(get(path, f"offset=-1{query}")).status == 200


def test_a_snapshot_that_cannot_be_stored_leaves_the_one_before(functions: Functions, s3: Breakable) -> None:
    """Neither published by half nor lost; the messages behind it can be read."""
    bucket = f"/bucket-gone-{next(_serial)}"
    stream = f"{bucket}/run"
    snapshot = f"{stream}/snapshot"
    assert functions(http_event("PUT", bucket)).status == 201
    assert functions(put(stream, b"abcdef")).status == 201
    assert functions(put(f"{snapshot}/{0:016d}", b"the first")).status == 204
    with s3.failing(NO_CONNECTION):
        check_out_of_reach(functions(put(f"{snapshot}/{6:016d}", b"the second")))
        latest = functions(get(snapshot, ""))
        assert (latest.status, latest["stream-snapshot-offset"]) == (307, f"{0:016d}")
        check_out_of_reach(functions(get(f"{snapshot}/{0:016d}", "")))
        check_out_of_reach(functions(get(f"{stream}/bootstrap", "")))
        assert functions(get(stream)).body == b"abcdef", "nothing was trimmed"
        assert functions(get(f"{bucket}/streams", "")).json["stream_count"] == 1
    assert functions(get(f"{snapshot}/{0:016d}", "")).body == b"the first"
    assert functions(put(f"{snapshot}/{6:016d}", b"the second")).status == 204


def test_an_upload_can_be_published_once_s3_is_back(
    functions: Functions, s3: Breakable, world: World
) -> None:
    """What was uploaded stays where it is until it can be looked at again."""
    bucket = f"/bucket-gone-{next(_serial)}"
    snapshot = f"{bucket}/run/snapshot/{6:016d}"
    functions(http_event("PUT", bucket))
    functions(put(f"{bucket}/run", b"abcdef"))
    upload = functions(post(f"{snapshot}/upload", b"")).json
    key = upload["url"].partition("?")[0].partition(f"{world.bucket_name}/")[2]
    s3.client.put_object(Bucket=world.bucket_name, Key=key, Body=b"folded")
    publish = put(snapshot, **{"snapshot-upload": upload["upload"]})
    for name in ("no connection", "silence", "internal error"):
        with s3.failing(OUT_OF_REACH[name]):
            check_out_of_reach(functions(publish))
    # S3 says this of an object that is not there as well, where listing is not allowed.
    with s3.failing(OUT_OF_REACH["forbidden"]):
        assert functions(publish).status == 409
    assert functions(publish).status == 204
    assert functions(get(snapshot, "")).body == b"folded"


def test_the_janitor_reclaims_later_what_s3_did_not_let_it_delete(
    functions: Functions, s3: Breakable, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is due stays due. The round has failed, so somebody hears of it."""
    assert functions(put(path, LARGE)).status == 201
    assert functions(http_event("DELETE", path)).status == 204
    janitor = functions.load("janitor")
    monkeypatch.setitem(functions.handlers, "janitor", janitor)
    stores = janitor.__globals__["_stores"]
    clock = stores.clock_ms
    stores.clock_ms = lambda: clock() + 2 * 3_600_000
    with s3.failing(NO_CONNECTION), pytest.raises(Exception, match="cannot be reached"):
        functions.invoke("janitor", {})
    assert functions.invoke("janitor", {})["reclaimed"] >= 1
