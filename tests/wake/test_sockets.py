"""The seam to the connections of a WebSocket API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.wake.management_api import ManagementApi, management_api
from tidemark.aws.http import Account
from tidemark.aws.sockets import SocketApi, SocketGone, SocketUnavailable, connect_sockets
from tidemark.local.engines import LocalServices

#: As API Gateway names them: not all of its characters may stand in a path.
CONNECTION = "L0SM9cOFvHcCIhw="


@pytest.fixture(scope="module")
def api(services: LocalServices) -> Iterator[ManagementApi]:
    """`services` sets credentials."""
    with management_api() as running:
        yield running


@pytest.fixture(scope="module")
def sockets(api: ManagementApi) -> SocketApi:
    made = connect_sockets(Account(), api.endpoint)
    made.sleep = lambda _seconds: None
    return made


def test_frames_arrive_in_their_order_as_they_were_sent(api: ManagementApi, sockets: SocketApi) -> None:
    frames = ['{"stream":"/v1/stream/schräg 🌊"}', "x" * 32 * 1024, "{}"]
    sockets.send(CONNECTION, frames)
    assert api.frames.pop(CONNECTION) == frames


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (410, SocketGone),
        (400, SocketUnavailable),
        (403, SocketUnavailable),
        (413, SocketUnavailable),
        (429, SocketUnavailable),
        (500, SocketUnavailable),
        (503, SocketUnavailable),
    ],
)
def test_only_410_says_that_a_connection_is_gone(
    api: ManagementApi, sockets: SocketApi, status: int, failure: type[Exception]
) -> None:
    """Its watches are removed then. After any other refusal they stand, and it is told later."""
    api.refused[CONNECTION] = status
    with pytest.raises(failure):
        sockets.send(CONNECTION, ["{}"])
    del api.refused[CONNECTION]


def test_an_unreachable_api_is_unavailable(services: LocalServices) -> None:
    with management_api() as stopped:
        pass
    with pytest.raises(SocketUnavailable):
        connect_sockets(Account(), stopped.endpoint).send(CONNECTION, ["{}"])


@pytest.mark.parametrize(("status", "posts"), [(503, 2), (429, 2), (403, 1), (410, 1)])
def test_a_post_that_may_succeed_a_moment_later_is_repeated_once(
    api: ManagementApi, sockets: SocketApi, status: int, posts: int
) -> None:
    """The others that wait for this notifier do not wait for longer."""
    api.posts = 0
    api.refused["busy"] = status
    with pytest.raises((SocketGone, SocketUnavailable)):
        sockets.send("busy", ["{}", "{}"])
    assert api.posts == posts
