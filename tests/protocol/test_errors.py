"""Every error: its status, and the headers that the protocol asks for with it."""

import copy
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.client.errors import refusal
from tidemark.protocol import errors
from tidemark.protocol.errors import PicklableError, ProtocolError
from tidemark.service.group_commit import ClientLeft

NEXT = {"Stream-Next-Offset": "0000000000000012"}
CHALLENGE = 'Bearer realm="tidemark"'
TOO_OLD = CHALLENGE + ', error="invalid_token", error_description="too old"'
CASES: list[tuple[ProtocolError, int, dict[str, str]]] = [
    (errors.Malformed("x"), 400, {}),
    (errors.SubscriptionError("x"), 400, {}),
    (errors.InvalidSubscription("x"), 400, {}),
    (errors.WebhookUrlRejected("x"), 400, {}),
    (errors.Unauthorized("x", token_given=False), 401, {"WWW-Authenticate": CHALLENGE}),
    (errors.Unauthorized("too old", token_given=True), 401, {"WWW-Authenticate": TOO_OLD}),
    (errors.DeliveryTokenInvalid("x"), 401, {"WWW-Authenticate": CHALLENGE}),
    (errors.ProxyError(403, "UPSTREAM_NOT_ALLOWED", "x"), 403, {}),
    (errors.Forbidden(["write", "manage"]), 403, {}),
    (errors.OriginAccessDenied(), 403, {}),
    (errors.ForeignOrigin("http://a"), 403, {}),
    (errors.StaleEpoch(7), 403, {"Producer-Epoch": "7"}),
    (errors.StreamNotFound(), 404, {}),
    (errors.SubscriptionNotFound(), 404, {}),
    (errors.SourceNotFound(), 404, {}),
    (errors.BucketNotFound(), 404, {}),
    (errors.SnapshotNotFound(), 404, {}),
    (errors.RouteNotFound(), 404, {}),
    (errors.SubscriptionExists(), 409, {}),
    (errors.DeliveryFenced(), 409, {}),
    (errors.AlreadyClaimed("w", 1), 409, {}),
    (errors.NoPendingWork(), 409, {}),
    (errors.InvalidAck("x"), 409, {}),
    (errors.Conflict("x"), 409, {}),
    (errors.BucketExists(), 409, {}),
    (errors.BucketNotEmpty(), 409, {}),
    (errors.OffsetBeyondTail(12), 409, NEXT),
    (errors.ForkBelowCompacted(12), 409, {"Stream-Compacted-Offset": f"{12:016}"}),
    (errors.SnapshotNeeded(), 409, {}),
    (errors.UploadNotFound(), 409, {}),
    (errors.AppendAfterClose(12), 409, {"Stream-Closed": "true"} | NEXT),
    (errors.ContentTypeMismatch("a/b", "c/d"), 409, {}),
    (errors.SequenceRegression("2", "1"), 409, {}),
    (errors.SequenceGap(3, 9), 409, {"Producer-Expected-Seq": "3", "Producer-Received-Seq": "9"}),
    (errors.SoftDeleted(), 410, {}),
    (errors.HistoryGone(13, 12), 410, NEXT),
    (errors.StaleCursor(12), 410, NEXT),
    (errors.RetentionGone(12), 410, NEXT),
    (errors.PreconditionFailed('"a"', 12), 412, {"ETag": '"a"'} | NEXT),
    (errors.PayloadTooLarge(10), 413, {}),
    (errors.TooManyMessages(10), 413, {}),
    (errors.UnsupportedEncoding("gzip"), 415, {"Accept-Encoding": "identity"}),
    (errors.UnknownHost("a"), 421, {}),
    (errors.Busy(), 429, {"Retry-After": "1"}),
    (errors.TooManySubscriptions("follow it", 100, 100), 429, {}),
    (errors.RateLimitExceeded(0.2), 429, {"Retry-After": "1"}),
    (errors.RateLimitExceeded(4.2), 429, {"Retry-After": "5"}),
    (errors.OutcomeUnknown(), 503, {"Retry-After": "1"}),
    (errors.StorageUnavailable(), 503, {"Retry-After": "5"}),
    (errors.BlobUnreadable(), 503, {"Retry-After": "5"}),
    (errors.Damaged(), 503, {"Retry-After": "5"}),
    (errors.StorageSilent(), 503, {"Retry-After": "1"}),
    (errors.KeysUnavailable(), 503, {"Retry-After": "5"}),
    (errors.EdgeTooNew(), 503, {"Retry-After": "5"}),
    (errors.FormatTooNew(2, 1), 503, {"Retry-After": "60"}),
]


@pytest.mark.parametrize(("error", "status", "headers"), CASES, ids=lambda case: type(case).__name__)
def test_an_error_has_status_and_headers(error: ProtocolError, status: int, headers: dict[str, str]) -> None:
    assert (error.status, error.headers) == (status, headers)
    assert error.message
    assert str(error) == error.message


def test_every_error_is_in_the_table_and_declared_in_one_file() -> None:
    """A new error needs its line above. `ClientLeft` lives elsewhere: its client has gone. The errors of
    Spark and of the Python client are those of the program that asks."""
    found = {name: each for name, each in vars(errors).items() if isinstance(each, type)}
    protocol = {each for each in found.values() if issubclass(each, ProtocolError)}
    protocol -= {ProtocolError, errors.TryAgain}
    assert protocol == {type(error) for error, _, _ in CASES}
    bases = "|".join(name for name, each in found.items() if issubclass(each, Exception))
    shared = Path(__file__).parents[2] / "shared" / "tidemark"
    declared = {
        (path.name, name)
        for path in shared.rglob("*.py")
        for name in re.findall(rf"^class (\w+)\((?:{bases})\)", path.read_text(), re.MULTILINE)
        if path != shared / "protocol" / "errors.py"
        and not {shared / "spark", shared / "client"} & set(path.parents)
    }
    assert declared == {("group_commit.py", "ClientLeft")}


def kinds_of(base: type[PicklableError]) -> Iterator[type[PicklableError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from kinds_of(kind)


def test_every_error_survives_pickle_and_copy() -> None:
    """A pool of processes breaks, or waits for ever, over an error that cannot be made again."""
    for kind in kinds_of(PicklableError):
        made = kind.__new__(kind, "a text")
        made.__dict__["status"] = 404
        check_copies(made)
    for error in (refusal("GET /a", 409, {"stream-closed": "true"}, b"{}", {}), ClientLeft()):
        check_copies(error)


def check_copies(error: Exception) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (type(again), again.args, vars(again)) == (type(error), error.args, vars(error))
