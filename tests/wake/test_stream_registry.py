"""The registry of streams: from the table's own stream to State events, whatever becomes of the records."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.stack.engines import LocalServices
from tests.stack.template import load_template
from tests.stack.triggers import Record, matches
from tests.support import Clock, Process, World, make_world
from tests.wake.support import ROOT
from tidemark.janitor.sweep import sweep
from tidemark.log.schema import decode_write
from tidemark.protocol.errors import Busy, OutcomeUnknown
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service import stream_registry
from tidemark.service.append import append
from tidemark.service.buckets import create_bucket
from tidemark.service.delete import delete
from tidemark.service.stream_registry import REGISTRY, StreamRegistry, written_by

JSON = parse_content_type("application/json")
[TRIGGER] = load_template(ROOT / "template.yaml").triggers


def key(name: str) -> StreamKey:
    return StreamKey(PLAIN_BUCKET, name)


@dataclass
class Scene:
    """A table of its own, whoever writes to it, and the records that the trigger lets through."""

    world: World
    process: Process = field(init=False)
    notifier: Process = field(init=False)
    registry: StreamRegistry = field(init=False)
    _records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.process, self.notifier = self.world.process(), self.world.process()
        self.registry = StreamRegistry(self.notifier.stores)
        self.world.followers.append(self._follow)

    def _follow(self, table_name: str, record: Record) -> None:
        if table_name == self.world.table_name:
            self._records.append(record)

    @property
    def clock(self) -> Clock:
        return self.world.clock

    def create(self, name: str, **asked: Any) -> None:
        self.clock.advance(1)
        self.process.create(key(name), **asked)

    def append(self, name: str, body: bytes = b"", *, close: bool = False) -> None:
        self.clock.advance(1)
        self.process.append(key(name), body, close=close)

    def delete(self, name: str) -> None:
        self.clock.advance(1)
        delete(self.process.stores, key(name))
        self.clock.advance(1)

    def open_registry(self) -> None:
        self.create(REGISTRY.stream_id, content_type=JSON)

    def records(self) -> list[Record]:
        """What was written since the last time."""
        found, self._records = self._records, []
        return [record for record in found if any(matches(each, record) for each in TRIGGER.patterns)]

    def told(self) -> list[Any]:
        """The registry's messages."""
        return list(json.loads(b"[" + self.process.read_all(REGISTRY).rstrip(b",") + b"]"))

    def changes(self) -> list[Any]:
        """Hand over all records at once; the messages that this made."""
        before = len(self.told())
        self.registry.append_changes(written_by(map(decode_write, self.records())))
        return self.told()[before:]

    def cost_of_telling(self) -> dict[str, int]:
        written = written_by(map(decode_write, self.records()))
        self.notifier.calls.taken()
        self.registry.append_changes(written)
        return self.notifier.calls.taken()


@pytest.fixture
def scene(services: LocalServices) -> Iterator[Scene]:
    made = Scene(make_world(services))
    yield made
    services.followers.remove(made._follow)


@pytest.fixture
def kept(scene: Scene) -> Scene:
    """With a registry from the beginning."""
    scene.open_registry()
    assert scene.changes() == []
    return scene


def said(events: Sequence[Any]) -> list[tuple[str, str]]:
    return [(event["headers"]["operation"], event["key"]) for event in events]


def listed(events: Sequence[Any]) -> dict[str, Any]:
    """As a reader of the State protocol sees it."""
    found: dict[str, Any] = {}
    for event in events:
        if event["headers"]["operation"] == "delete":
            found.pop(event["key"], None)
        else:
            found[event["key"]] = event["value"]
    return found


def test_without_a_registry_nothing_is_read_but_whether_there_is_one(scene: Scene) -> None:
    scene.create("a", body=b"x")
    assert scene.cost_of_telling() == {"GetItem": 1}
    scene.append("a", b"y")
    assert scene.cost_of_telling() == {}, "it is remembered for a while"
    scene.clock.advance(stream_registry.REMEMBER_MS - 2)
    scene.append("a", b"z")
    assert scene.cost_of_telling() == {"GetItem": 1}


def test_a_creation_a_closing_and_a_deletion_are_told_as_upstream_tells_them(kept: Scene) -> None:
    kept.create("chat/é 1", content_type=parse_content_type("text/plain; charset=utf-8"))
    named = {"type": "stream", "key": "chat/%C3%A9%201"}
    value = {"path": named["key"], "contentType": "text/plain; charset=utf-8", "createdAt": kept.clock()}
    second = "2027-01-15T08:00:00"
    headers = {"operation": "insert", "timestamp": f"{second}.002Z"}
    assert kept.changes() == [named | {"value": value, "headers": headers}]
    kept.append("chat/é 1", close=True)
    headers = {"operation": "update", "timestamp": f"{second}.003Z"}
    assert kept.changes() == [named | {"value": value | {"closed": True}, "headers": headers}]
    kept.delete("chat/é 1")
    headers = {"operation": "delete", "timestamp": f"{second}.004Z", "reason": "deleted"}
    assert kept.changes() == [named | {"headers": headers}]


@pytest.mark.parametrize("by", ["the janitor", "a creation", "a first append"])
def test_expiry_is_sent_when_the_janitor_ends_it_or_another_takes_its_name(kept: Scene, by: str) -> None:
    kept.create("short", expiry=Expiry(ttl_seconds=10))
    kept.changes()
    kept.clock.advance(60_000)
    if by == "the janitor":
        sweep(kept.process.stores)
    elif by == "a creation":
        kept.create("short")
    else:
        kept.process.create_by_append(key("short"), b"x")
    reasons = [(event["headers"]["operation"], event["headers"].get("reason")) for event in kept.changes()]
    assert (
        reasons == [("delete", "expired")]
        if by == "the janitor"
        else [("delete", "replaced"), ("insert", None)]
    )


def test_a_deleted_stream_that_its_forks_keep_is_not_listed(kept: Scene) -> None:
    kept.create("source", body=b"x")
    kept.changes()
    kept.process.fork(key("fork"), key("source"))
    kept.delete("source")
    kept.changes()
    assert listed(kept.told()).keys() == {"fork"}
    kept.delete("fork")
    sweep(kept.process.stores)
    kept.changes()
    assert listed(kept.told()) == {}


def test_appends_renewals_and_streams_of_a_bucket_tell_nothing(kept: Scene) -> None:
    kept.create("busy", expiry=Expiry(ttl_seconds=10))
    kept.changes()
    for _ in range(5):
        kept.clock.advance(5_000)
        kept.append("busy", b"x")
        kept.process.read_all(key("busy"))
    create_bucket(kept.process.stores, "agents")
    run = StreamKey("agents", "run")
    kept.process.create(run, body=b"x", closed=True)
    delete(kept.process.stores, run)
    assert kept.changes() == []


def test_the_registry_never_registers_itself(kept: Scene) -> None:
    kept.create("a")
    kept.changes()
    assert said(kept.changes()) == [], "its own batches are no news"
    kept.delete(REGISTRY.stream_id)
    kept.registry.append_changes(written_by(map(decode_write, kept.records())))
    kept.open_registry()
    kept.registry.append_changes(written_by(map(decode_write, kept.records())))
    assert said(kept.told()) == [("insert", "a")]


def test_streams_that_are_older_than_the_registry_are_listed_when_it_is_created(scene: Scene) -> None:
    names = [f"old/{number:03}" for number in range(120)]
    for name in names:
        scene.create(name)
    scene.delete(names[0])
    scene.open_registry()
    records = scene.records()
    scene.registry.append_changes(written_by(map(decode_write, records)))
    assert sorted(listed(scene.told())) == names[1:]
    count = len(scene.told())
    scene.registry.append_changes(written_by(map(decode_write, records)))
    assert len(scene.told()) == count, "what is repeated writes nothing twice"


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_a_registry_that_is_closed_or_of_another_type_holds_up_nothing(
    scene: Scene, caplog: pytest.LogCaptureFixture, content_type: str
) -> None:
    found = parse_content_type(content_type)
    scene.create(REGISTRY.stream_id, content_type=found, closed=found.is_json)
    scene.create("a")
    scene.registry.append_changes(written_by(map(decode_write, scene.records())))
    assert scene.process.read_all(REGISTRY) == b""
    assert "the registry refused" in caplog.text


def test_events_of_long_names_are_written_without_s3(kept: Scene) -> None:
    """The notifier's role has no right to it."""
    names = [f"{number:02}" + "\N{HIRAGANA LETTER A}" * 332 for number in range(48)]
    for name in names:
        kept.create(name)
    assert kept.cost_of_telling().keys() <= {"GetItem", "Query", "PutItem", "TransactWriteItems"}
    assert len(listed(kept.told())) == len(names)


def test_whoever_is_overtaken_between_looking_and_telling_brings_nothing_back(kept: Scene) -> None:
    """Two environments: one has seen the stream alive, and sleeps while the other one tells of its end."""
    kept.create("gone")
    records = kept.records()

    class Slow(StreamRegistry):
        def _append(self, *arguments: Any) -> None:
            kept.delete("gone")
            kept.registry.append_changes(written_by(map(decode_write, kept.records())))
            super()._append(*arguments)

    Slow(kept.notifier.stores).append_changes(written_by(map(decode_write, records)))
    assert listed(kept.told()) == {}


def crashing(chance: random.Random) -> Callable[..., Any]:
    """An append whose process dies before it, or after it was committed."""

    def call(*arguments: Any) -> Any:
        fate = chance.random()
        if fate < 0.15:
            raise Busy
        results = append(*arguments)
        if fate < 0.3:
            raise OutcomeUnknown
        return results

    return call


@pytest.mark.parametrize("seed", range(3))
def test_in_the_end_the_registry_lists_what_is_there_whatever_becomes_of_the_records(
    kept: Scene, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Streams come and go while their records arrive late, in any order, twice, cut into any batches, at two
    environments, and processes die before and after they have appended."""
    chance = random.Random(seed)
    monkeypatch.setattr(stream_registry, "append", crashing(chance))
    writers = [kept.registry, StreamRegistry(kept.world.process().stores)]
    names = [f"s{number}" for number in range(4)]
    alive: dict[str, bool] = {}
    waiting: list[Record] = []
    for _ in range(60):
        name = chance.choice(names)
        if name not in alive:
            alive[name] = chance.random() < 0.2
            kept.create(name, body=b"x", closed=alive[name])
        elif chance.random() < 0.4:
            kept.delete(name)
            del alive[name]
        elif not alive[name]:
            alive[name] = chance.random() < 0.5
            kept.append(name, b"y", close=alive[name])
        waiting += kept.records()
        if chance.random() < 0.5:
            chance.shuffle(waiting)
            batch = waiting[: chance.randrange(len(waiting) + 1)]
            if delivered(chance.choice(writers), batch):
                # Some arrive once more.
                waiting = [each for each in waiting if each not in batch or chance.random() < 0.1]
    while not delivered(chance.choice(writers), waiting):
        pass
    found = {name: value.get("closed", False) for name, value in listed(kept.told()).items()}
    assert found == alive
    told = [json.dumps(event) for event in kept.told()]
    assert len(told) == len(set(told)), "no event is written twice"


def delivered(registry: StreamRegistry, records: Sequence[Record]) -> bool:
    try:
        registry.append_changes(written_by(map(decode_write, records)))
    except (Busy, OutcomeUnknown):
        return False
    return True


def test_what_a_creation_and_an_append_cost_where_there_is_a_registry(kept: Scene) -> None:
    """docs/registry.md and docs/costs.md name these calls."""
    for number in range(20):
        kept.create(f"before/{number}")
        kept.changes()
    kept.create("a")
    # Is there a registry, the stream, the registry and its tail, the producer twice; the event.
    assert kept.cost_of_telling() == {"GetItem": 5, "Query": 1, "TransactWriteItems": 1}
    kept.append("a", b"x")
    assert kept.cost_of_telling() == {"Query": 1}
