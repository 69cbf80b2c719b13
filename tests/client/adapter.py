"""The client under upstream's suite for clients: one command a line on stdin, one result a line on stdout.

    python -m tests.client.adapter [--async]

`make clientconformance` runs the suite (durable-streams/durable-streams, packages/client-conformance-tests),
which starts this.
"""

import asyncio
import base64
import inspect
import json
import re
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Final

import httpx

from tidemark import __version__, client

Command = dict[str, Any]
Result = dict[str, Any]

#: The suite has a server that answers 500 twenty times.
RETRY: Final = client.Retry(max_retries=5)
ERROR_CODES: Final = (
    (client.NotFound, "NOT_FOUND"),
    (client.StreamClosed, "STREAM_CLOSED"),
    (client.SequenceConflict, "SEQUENCE_CONFLICT"),
    (client.StreamConflict, "CONFLICT"),
    (client.InvalidRequest, "INVALID_OFFSET"),
    (client.StatusError, "UNEXPECTED_STATUS"),
    (client.MalformedReply, "PARSE_ERROR"),
    (client.Unreachable, "NETWORK_ERROR"),
    (ValueError, "INVALID_ARGUMENT"),
)
#: The suite's names for our options, and ours for them. Times are in milliseconds there.
OPTIONS: Final = {
    "maxRetries": "max_retries",
    "initialDelayMs": "initial_delay_seconds",
    "maxDelayMs": "max_delay_seconds",
    "multiplier": "multiplier",
    "epoch": "epoch",
    "maxBatchBytes": "max_batch_bytes",
    "maxBatchItems": "max_batch_messages",
}


class Adapter:
    """`kind` is Stream or AsyncStream."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._server = ""
        self._content_types: dict[str, str] = {}
        self._producers: dict[tuple[str, str, int], Any] = {}
        self._headers: dict[str, Callable[[], str]] = {}
        self._params: dict[str, Callable[[], str]] = {}
        self._sent: dict[str, dict[str, str]] = {}
        self._statuses: list[tuple[str, int]] = []
        blocking = httpx.Client(event_hooks={"response": [self._see]})
        self._client = (
            blocking
            if kind is client.Stream
            else httpx.AsyncClient(event_hooks={"response": [self._see_later]})
        )

    async def answer(self, command: Command) -> Result:
        kind = command["type"]
        try:
            result: Result = await getattr(self, kind.replace("-", "_"))(command)
        except (client.StreamError, ValueError) as error:
            code = next(code for known, code in ERROR_CODES if isinstance(error, known))
            status = {"status": error.status} if isinstance(error, client.StatusError) else {}
            message = re.sub("|".join(OPTIONS.values()), lambda found: _theirs(found[0]), str(error))
            failed = {"type": "error", "success": False, "commandType": kind, "errorCode": code}
            return failed | status | {"message": message}
        return {"type": kind, "success": True, "status": 200} | result

    def _see(self, response: httpx.Response) -> None:
        if response.request.method != "HEAD":
            self._statuses.append((response.request.url.path, response.status_code))

    async def _see_later(self, response: httpx.Response) -> None:
        self._see(response)

    async def init(self, command: Command) -> Result:
        self.__init__(self._kind)  # type: ignore[misc]
        self._server = command["serverUrl"]
        features = ["batching", "sse", "longPoll", "auto", "streaming", "dynamicHeaders"]
        features += ["retryOptions", "batchItems", "strictZeroValidation"]
        name = f"tidemark-python ({self._kind.__name__})"
        return {"clientName": name, "clientVersion": __version__, "features": dict.fromkeys(features, True)}

    async def shutdown(self, _: Command) -> Result:
        return {}

    async def create(self, command: Command) -> Result:
        url = self._server + command["path"]
        try:
            await _awaited(self._kind(url, retry=RETRY).head())
            status = 200
        except client.NotFound:
            status = 201
        content_type = command.get("contentType", "application/octet-stream")
        asked = {"ttl": command.get("ttlSeconds"), "expires_at": command.get("expiresAt")}
        asked |= {"closed": command.get("closed", False), "data": _bytes(command.get("data"))}
        asked |= {"content_type": content_type, "headers": command.get("headers"), "retry": RETRY}
        stream = await _awaited(self._kind.create(url, **asked))
        self._content_types[command["path"]] = content_type
        return {"status": status, "offset": (await _awaited(stream.head())).offset}

    async def connect(self, command: Command) -> Result:
        head = await _awaited(self._stream(command).head())
        self._content_types[command["path"]] = head.content_type
        return {"offset": head.offset, "contentType": head.content_type, "streamClosed": head.closed}

    head = connect

    async def append(self, command: Command) -> Result:
        data = base64.b64decode(command["data"]) if command.get("binary") else command["data"].encode()
        seq = command.get("seq")
        done = await _awaited(self._stream(command).append(data, seq=None if seq is None else str(seq)))
        return {"offset": done.offset} | self._sent

    async def close(self, command: Command) -> Result:
        done = await _awaited(self._stream(command).close(_bytes(command.get("data"))))
        return {"finalOffset": done.offset}

    async def delete(self, command: Command) -> Result:
        await _awaited(self._stream(command).delete())
        self._content_types.pop(command["path"], None)
        return {}

    async def read(self, command: Command) -> Result:
        """Until there is as much as the command asks for, or its time is over. The first answer's status."""
        self._statuses.clear()
        live = "auto" if command.get("live") is True else command.get("live") or False
        offset = command.get("offset") or "-1"
        followed = _each(self._stream(command).follow(offset, live=live))
        chunks, heard = list[client.Chunk](), False
        # A long-poll that nothing has answered yet has caught up.
        last = client.Chunk(b"", offset, up_to_date=True)
        end = time.monotonic() + command.get("timeoutMs", 5000) / 1000
        try:
            while len(chunks) < command.get("maxChunks", 100):
                if command.get("waitForUpToDate") and heard and last.up_to_date:
                    break
                last = await asyncio.wait_for(anext(followed), max(0.0, end - time.monotonic()))
                chunks += [last] if last.data else []
                heard = True
        except (StopAsyncIteration, TimeoutError):
            pass
        finally:
            await followed.aclose()
        return {
            "status": next((status for path, status in self._statuses if path == command["path"]), 200),
            "chunks": [{"data": _shown(chunk), "offset": chunk.offset} for chunk in chunks],
            "offset": last.offset,
            "upToDate": last.up_to_date,
            "streamClosed": last.closed,
        } | self._sent

    async def idempotent_append(self, command: Command) -> Result:
        producer = self._producer(command)
        await _awaited(producer.append(command["data"].encode()))
        done = await _awaited(producer.flush())
        return {"offset": done.offset}

    async def idempotent_append_batch(self, command: Command) -> Result:
        """By a new producer. Several requests at once come of small batches."""
        in_flight = command.get("maxInFlight", 1)
        sizes = {"max_in_flight": in_flight} | ({"max_batch_bytes": 1} if in_flight > 1 else {})
        self._producers.pop(_key(command), None)
        producer = self._producer(command | {"options": sizes | {"linger_seconds": 0.1}})
        for item in command["items"]:
            await _awaited(producer.append(item.encode()))
        await _awaited(producer.flush())
        return {}

    async def idempotent_close(self, command: Command) -> Result:
        data = command.get("data")
        producer = self._producer(command)
        done = await _awaited(producer.close(_bytes(data)))
        return {"finalOffset": done.offset}

    async def idempotent_detach(self, command: Command) -> Result:
        await _awaited(self._producer(command).detach())
        del self._producers[_key(command)]
        return {}

    async def set_dynamic_header(self, command: Command) -> Result:
        self._headers[command["name"]] = self._dynamic("headersSent", command)
        return {}

    async def set_dynamic_param(self, command: Command) -> Result:
        self._params[command["name"]] = self._dynamic("paramsSent", command)
        return {}

    async def clear_dynamic(self, _: Command) -> Result:
        self._headers, self._params, self._sent = {}, {}, {}
        return {}

    async def validate(self, command: Command) -> Result:
        target = dict(command["target"])
        kind, producer_id = target.pop("target"), target.pop("producerId", "p")
        ours = {OPTIONS[name]: value / (1000 if name.endswith("Ms") else 1) for name, value in target.items()}
        if kind == "retry-options":
            client.Retry(**ours)
        else:
            self._kind(self._server + "/s", content_type="text/plain").producer(producer_id, **ours)
        return {}

    def _stream(self, command: Command) -> Any:
        return self._kind(
            self._server + command["path"],
            content_type=self._content_types.get(command["path"]),
            headers={**self._headers, **(command.get("headers") or {})},
            params=self._params,
            client=self._client,
            retry=RETRY,
        )

    def _producer(self, command: Command) -> Any:
        """One for each id and epoch, for as long as the server runs."""
        if _key(command) not in self._producers:
            epoch = None if command.get("autoClaim") else command.get("epoch", 0)
            options = {"linger_seconds": 0.0} | command.get("options", {})
            self._producers[_key(command)] = self._stream(command).producer(
                command["producerId"], epoch=epoch, **options
            )
        return self._producers[_key(command)]

    def _dynamic(self, kept: str, command: Command) -> Callable[[], str]:
        count = 0

        def value() -> str:
            nonlocal count
            count += 1
            kinds = {"counter": str(count), "timestamp": str(time.time_ns() // 1_000_000)}
            made = str(kinds.get(command["valueType"], command.get("initialValue", "")))
            self._sent.setdefault(kept, {})[command["name"]] = made
            return made

        return value


def _key(command: Command) -> tuple[str, str, int]:
    return command["path"], command["producerId"], command.get("epoch", 0)


def _theirs(name: str) -> str:
    return next(theirs for theirs, ours in OPTIONS.items() if ours == name)


def _shown(chunk: client.Chunk) -> str:
    """JSON as JavaScript writes it, which also shows that it is JSON."""
    if chunk.content_type.startswith("application/json"):
        return json.dumps(chunk.messages, separators=(",", ":"), ensure_ascii=False)
    return chunk.data.decode(errors="replace")


def _bytes(data: str | None) -> bytes | None:
    return None if data is None else data.encode()


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _each(followed: Any) -> AsyncGenerator[client.Chunk]:
    return followed if isinstance(followed, AsyncGenerator) else _on_a_thread(followed)


async def _on_a_thread(followed: Iterator[client.Chunk]) -> AsyncGenerator[client.Chunk]:
    """A blocking reader, which can be given up: its thread ends with the process."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[client.Chunk | Exception]()

    def read() -> None:
        try:
            for chunk in followed:
                loop.call_soon_threadsafe(queue.put_nowait, chunk)
            loop.call_soon_threadsafe(queue.put_nowait, EOFError())
        except Exception as error:  # noqa: BLE001 (raised again below)
            loop.call_soon_threadsafe(queue.put_nowait, error)

    threading.Thread(target=read, daemon=True).start()
    while not isinstance(got := await queue.get(), EOFError):
        if isinstance(got, Exception):
            raise got
        yield got


async def main() -> None:
    adapter = Adapter(client.AsyncStream if "--async" in sys.argv else client.Stream)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        print(json.dumps(await adapter.answer(command)), flush=True)
        if command["type"] == "shutdown":
            return


if __name__ == "__main__":
    asyncio.run(main())
