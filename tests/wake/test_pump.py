"""The pump hands on the table's changes, as Lambda's event source mapping does in AWS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import Process, World, a_key
from tests.wake.support import ROOT, pumping, until
from tidemark.local.environments import Environments, InvocationFailed, Throttled
from tidemark.local.template import Function, load_template
from tidemark.local.triggers import Pump, UnknownPattern, from_first_failure, matches
from tidemark.log.records import Waiter
from tidemark.log.schema import log_pk
from tidemark.log.waiters import put_waiter

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


@dataclass
class Recorder:
    """The function's memory."""

    pump: Pump

    @property
    def calls(self) -> list[list[dict[str, Any]]]:
        calls: list[list[dict[str, Any]]] = self._globals["calls"]
        return calls

    @property
    def outcomes(self) -> list[Any]:
        outcomes: list[Any] = self._globals["outcomes"]
        return outcomes

    @property
    def _globals(self) -> dict[str, Any]:
        found: dict[str, Any] = self.pump._environments._handler.__globals__
        return found

    def keys(self, key_pk: str) -> list[str]:
        """Sort keys of the log's records that arrived, in order, with repetitions."""
        return [
            record["dynamodb"]["Keys"]["sk"]["S"]
            for call in self.calls
            for record in call
            if record["dynamodb"]["Keys"]["pk"]["S"] == key_pk
        ]


@pytest.fixture
def function(tmp_path: Path) -> Function:
    module = tmp_path / "recorder.py"
    module.write_text(FUNCTION)
    return Function("Recorder", module, "handler", 30, 128, {})


@contextmanager
def recording(function: Function, world: World, **trigger: Any) -> Iterator[Recorder]:
    with pumping(world, function=function, **trigger) as pump:
        yield Recorder(pump)


@pytest.fixture
def process(world: World) -> Process:
    return world.process()


def test_the_notifier_gets_the_event_that_lambda_sends(
    function: Function, world: World, process: Process
) -> None:
    """In every field."""
    key = a_key()
    record = process.create(key).head.record
    with recording(function, world) as recorder:
        process.append(key, b"x")
        until(lambda: recorder.calls)
        [[event]] = recorder.calls
    change = event.pop("dynamodb")
    assert event.pop("eventID")
    assert event.pop("awsRegion")
    assert event.pop("eventSourceARN").startswith("arn:aws:dynamodb:")
    assert event == {"eventName": "INSERT", "eventVersion": "1.1", "eventSource": "aws:dynamodb"}
    assert abs(change.pop("ApproximateCreationDateTime") - time.time()) < 3600
    assert change.pop("SequenceNumber").isdigit()
    assert change.pop("SizeBytes") > 0
    pk = log_pk(key, record.incarnation)
    assert change == {
        "Keys": {"pk": {"S": pk}, "sk": {"S": "0" * 16}},
        "StreamViewType": "KEYS_ONLY",
    }


def test_only_records_that_the_templates_filter_accepts_arrive(
    function: Function, world: World, process: Process
) -> None:
    with recording(function, world) as recorder:
        key = a_key()
        record = process.create(key).head.record
        # The filter does not accept a waiter's item.
        put_waiter(process.stores.table, Waiter(record.incarnation, "http://queue", 1))
        for _ in range(5):
            process.append(key, b"x")
        pk = log_pk(key, record.incarnation)
        until(lambda: len(recorder.keys(pk)) == 5)
        found = [each["dynamodb"]["Keys"]["pk"]["S"] for call in recorder.calls for each in call]
        assert sorted(found) == ["bucket/v1", *[pk] * 5]


def test_a_batch_is_no_larger_than_the_templates_batch_size(
    function: Function, world: World, process: Process
) -> None:
    with recording(function, world, batch_size=7) as recorder:
        key = a_key()
        pk = log_pk(key, process.create(key).head.record.incarnation)
        for _ in range(40):
            process.append(key, b"x")
        until(lambda: len(recorder.keys(pk)) == 40)
        assert max(len(call) for call in recorder.calls) <= 7


def test_batches_follow_each_other_without_a_pause(
    function: Function, world: World, process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    """The environment that has just answered may not be free yet when the next batch comes."""
    with recording(function, world, batch_size=1) as recorder:
        key = a_key()
        pk = log_pk(key, process.create(key).head.record.incarnation)
        for _ in range(300):
            process.append(key, b"x")
        until(lambda: len(recorder.keys(pk)) >= 300)
        assert recorder.keys(pk) == [f"{number:016}" for number in range(300)]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("fault", [Throttled("busy"), InvocationFailed("broken"), LookupError("a bug")])
def test_the_pump_goes_on_after_any_exception(
    function: Function, world: World, process: Process, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """Whatever goes wrong with a batch: readers wait for the next ones."""
    with recording(function, world) as recorder:
        faults = iter([fault, fault])
        invoke = Environments.invoke

        def failing(environments: Environments, payload: bytes) -> Any:
            for each in faults:
                raise each
            return invoke(environments, payload)

        monkeypatch.setattr(Environments, "invoke", failing)
        key = a_key()
        pk = log_pk(key, process.create(key).head.record.incarnation)
        until(lambda: process.append(key, b"x").next_offset and recorder.keys(pk))


def test_a_failed_record_is_delivered_again_with_all_later_ones(
    function: Function, world: World, process: Process
) -> None:
    """Lambda goes on from the lowest number that is reported."""
    key = a_key()
    pk = log_pk(key, process.create(key).head.record.incarnation)
    with recording(function, world) as recorder:
        unknown = {"batchItemFailures": [{"itemIdentifier": "unknown"}]}
        recorder.outcomes.extend([RuntimeError("crash"), unknown])
        process.append(key, b"x")
        until(lambda: len(recorder.keys(pk)) == 3)
        process.append(key, b"y")
        until(lambda: recorder.keys(pk)[-1] == f"{1:016}")
    assert recorder.keys(pk) == [f"{0:016}"] * 3 + [f"{1:016}"]


def test_delivery_goes_on_from_the_lowest_failed_record() -> None:
    records = [{"dynamodb": {"SequenceNumber": str(number)}} for number in range(5)]
    failures = {"batchItemFailures": [{"itemIdentifier": "3"}, {"itemIdentifier": "1"}]}
    assert from_first_failure(records, failures) == records[1:]
    assert from_first_failure(records, {"batchItemFailures": []}) == []
    assert from_first_failure(records, None) == []


def test_a_record_that_always_fails_is_given_up(
    function: Function, world: World, process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    """It must not stop the stream."""
    key = a_key()
    pk = log_pk(key, process.create(key).head.record.incarnation)
    with recording(function, world, retries=2) as recorder:
        recorder.outcomes.extend([RuntimeError("crash")] * 3)
        process.append(key, b"x")
        until(lambda: len(recorder.keys(pk)) == 3)
        process.append(key, b"y")
        until(lambda: recorder.keys(pk)[-1] == f"{1:016}")
    assert "given up" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pattern", "event", "expected"),
    [
        ({}, {}, True),
        ({"a": ["x"]}, {"a": "x"}, True),
        ({"a": ["x", "y"]}, {"a": "y"}, True),
        ({"a": ["x"]}, {"a": "y"}, False),
        ({"a": ["x"]}, {}, False),
        ({"a": {"b": [1]}}, {"a": {"b": 1}}, True),
        ({"a": {"b": [1]}}, {"a": 1}, False),
        ({"a": [{"prefix": "lo"}]}, {"a": "log"}, True),
        ({"a": [{"prefix": "lo"}]}, {"a": "alog"}, False),
        ({"a": [{"prefix": "1"}]}, {"a": 1}, False),
        ({"a": ["x"], "b": ["y"]}, {"a": "x", "b": "z"}, False),
    ],
)
def test_filter_patterns_match_as_those_of_eventbridge_do(
    pattern: dict[str, Any], event: dict[str, Any], *, expected: bool
) -> None:
    assert matches(pattern, event) is expected


@pytest.mark.parametrize("pattern", [{"a": "x"}, {"a": [{"suffix": "x"}]}, {"a": [{"prefix": "a", "x": 1}]}])
def test_an_unsupported_filter_pattern_is_refused(pattern: dict[str, Any]) -> None:
    """Otherwise the pump would filter differently from AWS."""
    with pytest.raises(UnknownPattern):
        matches(pattern, {"a": "a"})


def test_the_template_names_one_trigger() -> None:
    [trigger] = load_template(ROOT / "template.yaml").triggers
    assert trigger.function == "NotifierFunction"
    assert trigger.patterns
    assert trigger.retries > 0
