"""The format epoch: a release that would misread what a later one has stored serves nothing of it."""

import json
import logging
from typing import Any

import pytest

from tests.lambdas.functions import Context, Functions, http_event, load_event
from tests.stack.engines import LocalServices
from tests.support import JSON, World, make_world
from tests.wake.live_process import running
from tidemark.log import schema
from tidemark.log.table import Condition, Table
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.errors import FormatTooNew
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.buckets import create_bucket

TOO_OLD = f"it reads format {schema.FORMAT_EPOCH}, and the table needs {schema.FORMAT_EPOCH + 1}"


@pytest.fixture
def world(services: LocalServices) -> World:
    return make_world(services)


@pytest.fixture
def later(world: World) -> World:
    """A later release has used it."""
    world.process().stores.table.put(schema.encode_format(schema.FORMAT_EPOCH + 1))
    return world


@pytest.fixture
def functions(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in world.variables.items():
        monkeypatch.setenv(name, value)
    running = Functions()
    running.start()
    yield running
    running.stop()


def stored(world: World) -> int:
    return schema.decode_format(world.process().stores.table.get(schema.FORMAT_KEY))


def test_a_writer_raises_the_epoch_and_a_reader_does_not(world: World, functions: Functions) -> None:
    assert functions(http_event("GET", "/v1/stream/nowhere")).status == 404
    assert stored(world) == 0
    assert functions(http_event("DELETE", "/v1/stream/nowhere")).status == 404
    assert stored(world) == schema.PLAIN_EPOCH


def test_a_process_asks_once(world: World) -> None:
    process = world.process()
    for _ in range(3):
        process.stores.check_format(schema.PLAIN_EPOCH)
    assert process.calls.taken() == {"GetItem": 1, "PutItem": 1}
    other = world.process()
    other.stores.check_format(schema.PLAIN_EPOCH)
    assert other.calls.taken() == {"GetItem": 1}


def test_of_two_who_raise_it_at_once_the_later_release_wins(world: World) -> None:
    """Between this release's look and its write a later one has written: its epoch stays."""
    stores = world.process().stores

    class Overtaken:
        def __init__(self, table: Table) -> None:
            self.get, self._table = table.get, table

        def put(self, item: Any, condition: Condition | None = None) -> None:
            self._table.put(schema.encode_format(schema.FORMAT_EPOCH + 1))
            self._table.put(item, condition)

    stores.table = Overtaken(stores.table)  # type: ignore[assignment]
    with pytest.raises(FormatTooNew):
        stores.check_format(schema.PLAIN_EPOCH)
    assert stored(world) == schema.FORMAT_EPOCH + 1


@pytest.mark.parametrize("of", ["a stream", "a bucket"])
def test_the_first_compaction_shuts_out_releases_that_cannot_read_its_packs(world: World, of: str) -> None:
    """A table without compacted streams can go back to the release before."""
    process = world.process()
    process.stores.check_format(schema.PLAIN_EPOCH)
    process.create(StreamKey("v1", "plain"), content_type=JSON)
    assert stored(world) < schema.COMPACTED_EPOCH
    if of == "a stream":
        process.create(StreamKey("v1", "compacted"), content_type=JSON, compaction=Compaction())
    else:
        create_bucket(process.stores, "tables", compaction=Compaction())
    assert stored(world) == schema.COMPACTED_EPOCH
    world.process().stores.check_format(schema.PLAIN_EPOCH)
    assert stored(world) == schema.COMPACTED_EPOCH


def test_a_function_that_is_too_old_answers_503_and_says_so(
    later: World, functions: Functions, caplog: pytest.LogCaptureFixture
) -> None:
    for method, path in (("GET", "/v1/stream/a"), ("POST", "/v1/stream/a"), ("OPTIONS", "/v1/stream/a")):
        answer = functions(http_event(method, path))
        assert answer.status == 503
        assert TOO_OLD in answer.json["error"]
    assert [each.levelno for each in caplog.records if TOO_OLD in each.message] == [logging.CRITICAL] * 3
    health = functions(http_event("GET", "/v1/health"))
    assert (health.status, TOO_OLD in health.json["error"]) == (503, True)
    functions.handlers["socket"] = functions.load("socket")
    told = json.loads(functions.invoke("socket", load_event("socket-message"))["body"])
    assert (told["status"], TOO_OLD in told["error"]) == (503, True)


@pytest.mark.parametrize("name", ["janitor", "packer", "notifier", "subscriptions"])
def test_a_function_behind_the_stack_does_nothing_when_it_is_too_old(
    later: World, functions: Functions, name: str
) -> None:
    handler = functions.load(name)
    event = load_event("janitor-schedule") if name in {"janitor", "packer"} else {"Records": []}
    with pytest.raises(FormatTooNew):
        handler(event, Context())


def test_health_is_up_while_storage_is_absent(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next request asks again."""
    monkeypatch.setenv("TABLE_NAME", "nowhere")
    functions.handlers["read"] = functions.load("read")
    assert functions(http_event("GET", "/v1/health")).status == 200
    assert functions(http_event("GET", "/v1/stream/tides")).status == 503


def test_the_live_function_is_refused_likewise(later: World) -> None:
    target = "/v1/stream/tides?offset=-1&live=sse"
    with running(later, health=503) as function, function.get(target) as response:
        assert response.status == 503
        assert TOO_OLD in response.read().decode()
