"""The pump hands on the table's changes, as Lambda's event source mapping does in AWS."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.stack.environments import Environments, InvocationFailed
from tests.stack.template import Function
from tests.stack.triggers import Pump, from_first_failure, matches
from tests.support import World, a_key
from tests.waiting import until
from tests.wake.support import pumping
from tidemark.log.schema import log_pk

pytestmark = pytest.mark.slow

#: A function that writes down what it is given, and fails as it is told to.
FUNCTION = """
calls, outcomes = [], []

def handler(event, context):
    calls.append(event["Records"])
    outcome = outcomes.pop(0) if outcomes else None
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome or {"batchItemFailures": []}
"""


class Scene:
    """A stream, and the function that gets its records."""

    def __init__(self, world: World, tmp_path: Path) -> None:
        module = tmp_path / "recorder.py"
        module.write_text(FUNCTION)
        self.function = Function("Recorder", module, "handler", 30, 128, {})
        self.world, self.process, self.key = world, world.process(), a_key()
        self.incarnation = self.process.create(self.key).head.record.incarnation
        self.pump: Pump | None = None

    @contextmanager
    def pumping(self, **trigger: Any) -> Iterator[None]:
        with pumping(self.world, function=self.function, **trigger) as self.pump:
            yield

    def append(self, times: int = 1) -> None:
        for _ in range(times):
            self.process.append(self.key, b"x")

    def memory(self, name: str) -> list[Any]:
        """Of the function."""
        assert self.pump is not None
        found: list[Any] = self.pump._environments._handler.__globals__[name]
        return found

    def arrived(self) -> list[int]:
        """Where the stream's batches begin of which records arrived, in order, with repetitions."""
        keys = [each["dynamodb"]["Keys"] for call in self.memory("calls") for each in call]
        pk = log_pk(self.key, self.incarnation)
        return [int(each["sk"]["S"]) for each in keys if each["pk"]["S"] == pk]


@pytest.fixture
def scene(world: World, tmp_path: Path) -> Scene:
    return Scene(world, tmp_path)


def test_the_function_gets_the_event_that_lambda_sends(scene: Scene) -> None:
    """In every field."""
    with scene.pumping():
        scene.append()
        until(lambda: scene.memory("calls"))
        [[event]] = scene.memory("calls")
    change = event.pop("dynamodb")
    assert event.pop("eventID")
    assert event.pop("awsRegion")
    assert event.pop("eventSourceARN").startswith("arn:aws:dynamodb:")
    assert event == {"eventName": "INSERT", "eventVersion": "1.1", "eventSource": "aws:dynamodb"}
    assert abs(change.pop("ApproximateCreationDateTime") - time.time()) < 3600
    assert change.pop("SequenceNumber").isdigit()
    assert change.pop("SizeBytes") > 0
    pk = log_pk(scene.key, scene.incarnation)
    keys = {"pk": {"S": pk}, "sk": {"S": "0" * 16}}
    assert change == {"Keys": keys, "StreamViewType": "KEYS_ONLY"}


def test_the_pump_goes_on_after_any_exception(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong with a batch: readers wait for the next ones."""
    faults, invoke = iter([InvocationFailed("broken"), LookupError("a bug")]), Environments.invoke

    def failing(environments: Environments, payload: bytes) -> Any:
        for each in faults:
            raise each
        return invoke(environments, payload)

    def has_gone_on() -> bool:
        scene.append()
        return bool(scene.arrived())

    with scene.pumping():
        monkeypatch.setattr(Environments, "invoke", failing)
        until(has_gone_on)


@pytest.mark.parametrize("retries", [2, 3])
def test_a_failed_record_is_delivered_again_until_it_is_given_up(
    scene: Scene, capsys: pytest.CaptureFixture[str], retries: int
) -> None:
    """Also where the answer names an unknown one. A record that always fails must not stop the stream."""
    unknown = {"batchItemFailures": [{"itemIdentifier": "unknown"}]}
    with scene.pumping(retries=retries):
        scene.memory("outcomes").extend([RuntimeError("crash"), unknown, RuntimeError("crash")])
        scene.append()
        until(lambda: len(scene.arrived()) == retries + 1)
        scene.append()
        until(lambda: scene.arrived()[-1] == 1)
    assert scene.arrived() == [0] * (retries + 1) + [1]
    assert ("given up" in capsys.readouterr().err) is (retries == 2)


def test_delivery_goes_on_from_the_lowest_failed_record() -> None:
    records = [{"dynamodb": {"SequenceNumber": str(number)}} for number in range(5)]
    failures = {"batchItemFailures": [{"itemIdentifier": "3"}, {"itemIdentifier": "1"}]}
    assert from_first_failure(records, failures) == records[1:]
    assert from_first_failure(records, {"batchItemFailures": []}) == []
    assert from_first_failure(records, None) == []


@pytest.mark.parametrize(
    ("pattern", "event", "expected"),
    [
        ({}, {}, True), ({"a": ["x", "y"]}, {"a": "y"}, True), ({"a": ["x"]}, {"a": "xy"}, False),
        ({"a": ["x"]}, {}, False), ({"a": {"b": [1]}}, {"a": {"b": 1}}, True),
        ({"a": {"b": [1]}}, {"a": 1}, False), ({"a": [{"prefix": "lo"}]}, {"a": "log"}, True),
        ({"a": [{"prefix": "1"}]}, {"a": 1}, False), ({"a": ["x"], "b": ["y"]}, {"a": "x", "b": "z"}, False),
    ],
)  # fmt: skip
def test_filter_patterns_match_as_those_of_eventbridge_do(
    pattern: dict[str, Any], event: dict[str, Any], *, expected: bool
) -> None:
    assert matches(pattern, event) is expected
