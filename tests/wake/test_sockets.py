"""The seam to the connections of a WebSocket API, with boto3's own client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.wake.management_api import ManagementApi, management_api
from tidemark.aws.sockets import SocketGone, Sockets, SocketUnavailable, connect_sockets
from tidemark.local.engines import LocalServices

#: As API Gateway names them: not all of its characters may stand in a path.
CONNECTION = "L0SM9cOFvHcCIhw="


@pytest.fixture(scope="module")
def api(services: LocalServices) -> Iterator[ManagementApi]:
    """`services` sets credentials."""
    with management_api() as running:
        yield running


@pytest.fixture(scope="module")
def sockets(api: ManagementApi) -> Sockets:
    return connect_sockets(api.endpoint)


def test_frames_arrive_in_their_order_as_they_were_sent(api: ManagementApi, sockets: Sockets) -> None:
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
    api: ManagementApi, sockets: Sockets, status: int, failure: type[Exception]
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
        connect_sockets(stopped.endpoint).send(CONNECTION, ["{}"])


def test_a_system_whose_records_wake_no_socket_makes_no_client() -> None:
    """It would cost each cold start."""
    assert "_client" not in vars(connect_sockets("https://api.example/stage"))
