"""Every error: its status, and the headers that the protocol asks for with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemark.protocol import errors
from tidemark.protocol.errors import ProtocolError

CASES: list[tuple[ProtocolError, int, dict[str, str]]] = [
    (errors.Malformed("x"), 400, {}),
    (errors.Unauthorized("x", token_given=False), 401, {"WWW-Authenticate": 'Bearer realm="tidemark"'}),
    (
        errors.Unauthorized("too old", token_given=True),
        401,
        {"WWW-Authenticate": 'Bearer realm="tidemark", error="invalid_token", error_description="too old"'},
    ),
    (errors.Forbidden(["write", "manage"]), 403, {}),
    (errors.OriginAccessDenied(), 403, {}),
    (errors.ForeignOrigin("http://a"), 403, {}),
    (errors.UnknownHost("a"), 421, {}),
    (errors.ProducerFenced(7), 403, {"Producer-Epoch": "7"}),
    (errors.StreamNotFound(), 404, {}),
    (errors.SubscriptionError("x"), 400, {}),
    (errors.InvalidSubscription("x"), 400, {}),
    (errors.WebhookUrlRejected("x"), 400, {}),
    (errors.WakeTokenInvalid("x"), 401, {"WWW-Authenticate": 'Bearer realm="tidemark"'}),
    (errors.SubscriptionNotFound(), 404, {}),
    (errors.SubscriptionExists(), 409, {}),
    (errors.WakeFenced(), 409, {}),
    (errors.AlreadyClaimed("w", 1), 409, {}),
    (errors.NoPendingWork(), 409, {}),
    (errors.InvalidAck("x"), 409, {}),
    (errors.StreamGone(), 410, {}),
    (errors.SourceNotFound(), 404, {}),
    (errors.BucketNotFound(), 404, {}),
    (errors.SnapshotNotFound(), 404, {}),
    (errors.RouteNotFound(), 404, {}),
    (errors.Conflict("x"), 409, {}),
    (errors.BucketExists(), 409, {}),
    (errors.BucketNotEmpty(), 409, {}),
    (errors.OffsetBeyondTail(12), 409, {"Stream-Next-Offset": "0000000000000012"}),
    (errors.SnapshotNeeded(), 409, {}),
    (errors.UploadNotFound(), 409, {}),
    (errors.HistoryGone(13, 12), 410, {"Stream-Next-Offset": "0000000000000012"}),
    (errors.StreamReplaced(12), 410, {"Stream-Next-Offset": "0000000000000012"}),
    (errors.RetentionGone(12), 410, {"Stream-Next-Offset": "0000000000000012"}),
    (errors.StreamClosed(12), 409, {"Stream-Closed": "true", "Stream-Next-Offset": "0000000000000012"}),
    (errors.ContentTypeMismatch("a/b", "c/d"), 409, {}),
    (errors.SequenceRegression("2", "1"), 409, {}),
    (errors.SequenceGap(3, 9), 409, {"Producer-Expected-Seq": "3", "Producer-Received-Seq": "9"}),
    (errors.PayloadTooLarge(10), 413, {}),
    (errors.TooManyMessages(10), 413, {}),
    (
        errors.PreconditionFailed('"a"', 12),
        412,
        {"ETag": '"a"', "Stream-Next-Offset": "0000000000000012"},
    ),
    (errors.UnsupportedEncoding("gzip"), 415, {"Accept-Encoding": "identity"}),
    (errors.Busy(), 429, {"Retry-After": "1"}),
    (errors.RateLimitExceeded(0.2), 429, {"Retry-After": "1"}),
    (errors.RateLimitExceeded(4.2), 429, {"Retry-After": "5"}),
    (errors.OutcomeUnknown(), 503, {"Retry-After": "1"}),
    (errors.StorageUnavailable(), 503, {"Retry-After": "5"}),
    (errors.Damaged(), 503, {"Retry-After": "5"}),
    (errors.StorageSilent(), 503, {"Retry-After": "1"}),
    (errors.KeysUnavailable(), 503, {"Retry-After": "5"}),
    (errors.EdgeTooNew(), 503, {"Retry-After": "5"}),
    (errors.FormatTooNew(2, 1), 503, {"Retry-After": "60"}),
]


@pytest.mark.parametrize(("error", "status", "headers"), CASES, ids=lambda case: type(case).__name__)
def test_an_error_has_its_status_its_headers_and_a_message(
    error: ProtocolError, status: int, headers: dict[str, str]
) -> None:
    assert (error.status, error.headers) == (status, headers)
    assert error.message
    assert str(error) == error.message


def test_every_error_is_in_the_table() -> None:
    """A new error needs its line above."""
    declared = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, ProtocolError) and value is not ProtocolError
    }
    assert declared == {type(error) for error, _, _ in CASES}


def test_every_error_that_a_client_gets_is_declared_in_one_file() -> None:
    """`ClientLeft` lives elsewhere: its client has gone. The errors of Spark and of the Python client
    are those of the program that asks."""
    shared = Path(__file__).parents[2] / "shared" / "tidemark"
    bases = "|".join(
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    )
    declared = {
        (path.name, name)
        for path in shared.rglob("*.py")
        for name in re.findall(rf"^class (\w+)\((?:{bases})\)", path.read_text(), re.MULTILINE)
        if path != shared / "protocol" / "errors.py"
        and not {shared / "spark", shared / "client"} & set(path.parents)
    }
    assert declared == {("group_commit.py", "ClientLeft")}
