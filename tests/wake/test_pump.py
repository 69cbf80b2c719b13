"""The pump hands on the table's changes, as Lambda's event source mapping does in AWS."""

from typing import Any

import pytest

from tests.stack.triggers import from_first_failure, matches


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
