"""What a subscription may be configured to do (§6.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidemark.protocol.errors import InvalidSubscription
from tidemark.protocol.subscription import (
    SubscriptionConfiguration,
    SubscriptionKind,
    check_subscription_id,
    configuration_hash,
    configure,
)

WEBHOOK, PULL_WAKE = SubscriptionKind.WEBHOOK, SubscriptionKind.PULL_WAKE
ASKED: dict[str, Any] = {
    "pattern": "/events/*/",
    "streams": ["b", "/a/", "b"],
    "webhook_url": None,
    "wake_stream": "wake/pool",
    "lease_ttl_ms": 30_000,
    "description": None,
}


def test_paths_lose_their_outer_slashes_and_repetitions() -> None:
    made = configure(PULL_WAKE, **ASKED)
    assert made == SubscriptionConfiguration(
        PULL_WAKE, "events/*", ("a", "b"), None, "wake/pool", 30_000, None
    )
    assert configuration_hash(made) == configuration_hash(
        configure(PULL_WAKE, **ASKED | {"streams": ["a", "b"]})
    )


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (PULL_WAKE, {"pattern": None, "streams": []}),
        (PULL_WAKE, {"pattern": "", "streams": []}),
        (PULL_WAKE, {"wake_stream": None}),
        (PULL_WAKE, {"webhook_url": "https://example.com"}),
        (WEBHOOK, {}),
        (WEBHOOK, {"webhook_url": "https://example.com"}),
        (PULL_WAKE, {"lease_ttl_ms": 999}),
        (PULL_WAKE, {"lease_ttl_ms": 600_001}),
        (PULL_WAKE, {"description": "x" * 1_001}),
        (PULL_WAKE, {"streams": ["wake/pool"]}),
        (PULL_WAKE, {"streams": ["a//b"]}),
        (PULL_WAKE, {"streams": [".."]}),
        (PULL_WAKE, {"streams": [""]}),
        (PULL_WAKE, {"streams": ["__ds/x"]}),
        (PULL_WAKE, {"wake_stream": "__ds/x"}),
        (PULL_WAKE, {"pattern": "a/\n"}),
        (PULL_WAKE, {"pattern": "a" * 1_001}),
        (PULL_WAKE, {"streams": [str(number) for number in range(1_001)]}),
    ],
)
def test_what_makes_no_sense_is_refused(kind: SubscriptionKind, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidSubscription):
        configure(kind, **ASKED | asked)


@pytest.mark.parametrize(
    "change",
    [
        {"pattern": "events/**"},
        {"streams": ("a",)},
        {"wake_stream": "wake/other"},
        {"lease_ttl_ms": 1_000},
        {"description": "x"},
        {"kind": WEBHOOK},
        {"webhook_url": "https://example.com"},
    ],
)
def test_every_part_of_the_configuration_is_in_its_hash(change: dict[str, Any]) -> None:
    made = configure(PULL_WAKE, **ASKED)
    assert configuration_hash(replace(made, **change)) != configuration_hash(made)


def test_a_wake_stream_never_matches_its_own_pattern() -> None:
    made = configure(PULL_WAKE, **ASKED | {"pattern": "**"})
    assert made.follows("events/a")
    assert not made.follows("wake/pool")


@pytest.mark.parametrize("name", ["", "a/b", "a\n", "x" * 501])
def test_an_id_that_cannot_be_in_a_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidSubscription):
        check_subscription_id(name)
    assert check_subscription_id("sub-1 é") == "sub-1 é"
