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


@pytest.mark.parametrize("status", [400, 403, 413, 429, 500, 503])
def test_a_connection_that_cannot_be_told_anything_is_cut_off(
    api: ManagementApi, sockets: SocketApi, status: int
) -> None:
    """As one whose client does not read (429): it would hold up all who wait for the same trigger."""
    api.refused["full"] = status
    with pytest.raises(SocketGone):
        sockets.send("full", ["{}"])
    assert api.refused["full"] == 410


@pytest.mark.parametrize("status", [403, 429, 500])
def test_an_api_that_refuses_everything_is_unavailable(
    api: ManagementApi, sockets: SocketApi, status: int
) -> None:
    """The watches stand, and are told later."""
    api.down[CONNECTION] = status
    with pytest.raises(SocketUnavailable, match=str(status)):
        sockets.send(CONNECTION, ["{}"])
    api.down.clear()


def test_an_unreachable_api_is_unavailable(services: LocalServices) -> None:
    with management_api() as stopped:
        pass
    with pytest.raises(SocketUnavailable):
        connect_sockets(Account(), stopped.endpoint).send(CONNECTION, ["{}"])


@pytest.mark.parametrize(("status", "posts"), [(503, 3), (429, 3), (403, 1), (410, 1)])
def test_a_post_that_may_succeed_a_moment_later_is_repeated_twice(
    api: ManagementApi, sockets: SocketApi, status: int, posts: int
) -> None:
    """The others that wait for this notifier do not wait for longer."""
    api.posts = 0
    api.refused["busy"] = status
    with pytest.raises(SocketGone):
        sockets.send("busy", ["{}", "{}"])
    assert api.posts == posts
