"""A reader loses and doubles nothing, whatever breaks between it and the server."""

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemark.client import Retry, Stream
from tidemark.client.reading import Live

MESSAGES = [f"message {number} of the tide 🌊 ".encode() for number in range(12)]
FAST = Retry(max_retries=100, initial_delay_seconds=0.001, max_delay_seconds=0.002)


class CuttingBody(httpx.SyncByteStream):
    """Breaks off after so many bytes, as a connection does."""

    def __init__(self, whole: httpx.Response, left: int) -> None:
        self._whole, self._left = whole, left

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._whole.iter_raw():
            yield piece[: self._left]
            self._left -= len(piece)
            if self._left <= 0:
                raise httpx.ReadError("cut")

    def close(self) -> None:
        self._whole.close()


class CuttingTransport(httpx.BaseTransport):
    """Each response is cut as the list says, until the list is empty: before its headers (None) or after so
    many bytes."""

    def __init__(self, cuts: list[int | None]) -> None:
        self._cuts, self._inner = cuts, httpx.HTTPTransport(verify=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._inner.handle_request(request)
        if request.method != "GET" or not self._cuts:
            return response
        cut = self._cuts.pop(0)
        if cut is None:
            response.close()
            raise httpx.ReadError("cut")
        body = CuttingBody(response, cut)
        return httpx.Response(response.status_code, headers=response.headers, stream=body)

    def close(self) -> None:
        self._inner.close()


@pytest.mark.parametrize("live", ["socket", "sse", "long-poll"])
@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", "application/json"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_reader_that_is_cut_off_at_any_byte_gets_everything_once(
    tidemark_url: str, live: Live, content_type: str, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.one_of(st.none(), st.integers(0, 700)), max_size=8))
    url = f"{tidemark_url}/v1/stream/cut"
    with ExitStack() as stack:
        writer = Stream.create(url, content_type=content_type)
        stack.callback(writer.delete)
        reading = stack.enter_context(httpx.Client(transport=CuttingTransport(cuts)))
        for message in MESSAGES[:4]:
            writer.append(message.decode() if content_type == "application/json" else message)
        chunks, rest = list[object](), iter(MESSAGES[4:])
        for chunk in Stream(url, client=reading, retry=FAST).follow(live=live):
            chunks += chunk.messages if content_type == "application/json" else [chunk.data]
            if chunk.closed:
                break
            if chunk.up_to_date and (more := next(rest, None)) is not None:
                writer.append(more.decode() if content_type == "application/json" else more)
            elif chunk.up_to_date:
                writer.close()
        if content_type == "application/json":
            assert chunks == [message.decode() for message in MESSAGES]
        else:
            assert b"".join(chunks) == b"".join(MESSAGES)  # type: ignore[arg-type]
