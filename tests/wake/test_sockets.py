"""The seam to the connections of a WebSocket API."""

import pytest

from tidemark.aws.http import AwsRequest
from tidemark.aws.retry import NoAnswer
from tidemark.observability.metrics import FAULTS
from tidemark.wake.notifier import SocketApi, SocketGone, SocketUnavailable

#: As API Gateway names them: not all of its characters may stand in a path.
CONNECTION, PATH = "L0SM9cOFvHcCIhw=", "/stage/@connections/L0SM9cOFvHcCIhw%3D"


class Api(SocketApi):
    """With API Gateway's answers: to all posts, and to all deletions; 0 for none."""

    def __init__(self, post: int = 200, delete: int = 204) -> None:
        super().__init__(self.answer, "/stage")
        self.sleep = lambda _seconds: None
        self.statuses = {"POST": post, "DELETE": delete}
        self.asked: list[AwsRequest] = []

    def answer(self, request: AwsRequest) -> tuple[int, bytes]:
        assert request.path == PATH
        self.asked.append(request)
        if status := self.statuses[request.method]:
            return status, b"" if status < 300 else b'{"message": "refused"}'
        raise NoAnswer("nobody is there")

    @property
    def methods(self) -> list[str]:
        return [request.method for request in self.asked]


def test_frames_arrive_in_their_order_as_they_were_sent() -> None:
    frames, api = ['{"stream":"/v1/stream/schräg 🌊"}', "x" * 32 * 1024, "{}"], Api()
    api.send(CONNECTION, frames)
    assert [(request.method, request.body.decode()) for request in api.asked] == [
        ("POST", frame) for frame in frames
    ]


@pytest.mark.parametrize(
    ("status", "posts"), [(0, 3), (429, 3), (500, 3), (503, 3), (400, 1), (403, 1), (413, 1)]
)
def test_a_connection_that_cannot_be_told_anything_is_cut_off(status: int, posts: int) -> None:
    """As one whose client does not read (429): it would hold up all who wait for the same trigger. What may
    succeed a moment later is repeated twice: the others do not wait for longer."""
    api = Api(status)
    with pytest.raises(SocketGone):
        api.send(CONNECTION, ["{}", "{}"])
    assert api.methods == ["POST"] * posts + ["DELETE"]
    assert api.meter.snapshot().counts == {(FAULTS, ()): 1}


def test_a_connection_that_is_gone_is_not_asked_again() -> None:
    api = Api(410)
    with pytest.raises(SocketGone):
        api.send(CONNECTION, ["{}", "{}"])
    assert api.methods == ["POST"]
    assert not api.meter.snapshot().counts, "nobody is told of a client that left"


@pytest.mark.parametrize("status", [0, 403, 429, 500])
def test_an_api_that_refuses_everything_is_unavailable(status: int) -> None:
    """The watches stand, and are told later."""
    with pytest.raises(SocketUnavailable, match=str(status) if status else "nobody"):
        Api(status, status).send(CONNECTION, ["{}"])
