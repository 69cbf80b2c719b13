"""An AG-UI agent behind FastAPI. The events of a thread live in a stream of Tidemark, which outlives
connections and this process. `tidemark-agent.mjs` reads them and resumes; a plain HttpAgent reads them too.

.venv/bin/pip install ag-ui-protocol
.venv/bin/uvicorn --app-dir docs/examples/ag-ui agent:app
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunStartedEvent,
    TextMessageChunkEvent,
)
from fastapi import FastAPI, HTTPException, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response, StreamingResponse

from tidemark import AsyncStream
from tidemark.client import ETagMismatch, InvalidRequest, NotFound, ProducerFenced, UnconfirmedWrite

#: Yields the events between RUN_STARTED and the run's end.
Agent = Callable[[RunAgentInput], AsyncIterator[BaseEvent]]

THREADS = os.environ.get("THREADS", "http://127.0.0.1:4437/v1/stream/threads")
HEADERS = {"Authorization": f"Bearer {token}"} if (token := os.environ.get("TIDEMARK_TOKEN")) else {}
#: A run whose writer is silent for longer has died. A living writer appends three times as often.
LOST_SECONDS = float(os.environ.get("LOST_SECONDS", "30"))
ENDS = {"RUN_FINISHED", "RUN_ERROR"}
log = logging.getLogger(__name__)
#: The runs that this process writes.
writing: dict[str, asyncio.Task[None]] = {}


@dataclass
class Thread:
    """The contents of a thread's stream."""

    tail: str
    etag: str | None
    #: The offset of each run, by its id.
    runs: dict[str, str] = field(default_factory=dict)
    #: The run under way.
    open: str | None = None
    #: When the last event was written, in milliseconds.
    written_ms: int = 0
    #: Messages and tool calls.
    ids: set[str] = field(default_factory=set)

    def add(self, event: dict[str, Any]) -> None:
        self.written_ms = event["timestamp"]
        self.ids |= {event[name] for name in ("messageId", "parentMessageId", "toolCallId") if name in event}
        if event["type"] == "RUN_STARTED":
            self.open = event["runId"]
            self.runs[event["runId"]] = event["rawEvent"]["offset"]
            self.ids |= {message["id"] for message in event["input"]["messages"]}
        elif event["type"] in ENDS:
            self.open = None


def line(event: BaseEvent) -> bytes:
    event.timestamp = time.time_ns() // 1_000_000
    return event.model_dump_json(by_alias=True).encode()


def alive() -> BaseEvent:
    return CustomEvent(name="alive", value=None)


def stream_of(thread_id: str) -> AsyncStream:
    return AsyncStream(
        f"{THREADS}/{quote(thread_id, safe='')}", content_type="application/json", headers=HEADERS
    )


async def load(stream: AsyncStream) -> Thread:
    """Read the thread, and end a run whose writer has died. If it was only slow, it gets ProducerFenced."""
    await AsyncStream.create(stream.url, content_type="application/json", headers=HEADERS)
    head = await stream.head()  # Before the read: a later append then refuses `if_match`.
    thread = Thread(head.offset, head.etag)
    async for chunk in stream.follow(live=False):
        for event in chunk.messages:
            thread.add(event)
        thread.tail = chunk.offset
    silent_seconds = time.time() - thread.written_ms / 1000
    if not thread.open or thread.open in writing or silent_seconds < LOST_SECONDS:
        return thread
    with suppress(ETagMismatch, UnconfirmedWrite):  # A server or the writer has appended since.
        died = RunErrorEvent(message="The agent's process has died", code="cut")
        await stream.append(line(died), if_match=thread.etag)
        async with stream.producer("agent", closes=False) as producer:
            await producer.append(line(alive()))
    return await load(stream)


async def begin(stream: AsyncStream, run: RunAgentInput) -> tuple[Thread, bool]:
    """Append RUN_STARTED. Returns False if the run has begun earlier."""
    while True:
        thread = await load(stream)
        if run.run_id in thread.runs:
            return thread, False
        if thread.open:
            raise HTTPException(409, f"run {thread.open} of this thread has not ended; stop it, or wait")
        new = [message for message in run.messages if message.id not in thread.ids]
        started = RunStartedEvent(
            thread_id=run.thread_id,
            run_id=run.run_id,
            input=run.model_copy(update={"messages": new}),
            raw_event={"offset": thread.tail},
        )
        # Without an answer, or behind another append, the next look decides. If this append was written after
        # all, nobody writes the run, and it ends as a lost one.
        with suppress(ETagMismatch, UnconfirmedWrite):
            receipt = await stream.append(line(started), if_match=thread.etag)
            thread.runs[run.run_id], thread.tail = thread.tail, receipt.offset
            return thread, True


async def write(stream: AsyncStream, run: RunAgentInput, agent: Agent) -> None:
    """Write the events of the agent, a sign of life while it is silent, and the run's end."""
    async with stream.producer("agent", closes=False, linger_seconds=0.2) as producer:
        async with stream.stop_requests() as stop:

            async def work() -> None:
                async for event in agent(run):
                    await producer.append(line(event))

            working, stopping = asyncio.create_task(work()), asyncio.create_task(stop.wait())
            stopping.add_done_callback(lambda _: working.cancel())
            while not (await asyncio.wait([working], timeout=LOST_SECONDS / 3))[0]:
                await producer.append(line(alive()))
            stopping.cancel()
        if working.cancelled():
            end: BaseEvent = RunErrorEvent(message="The run was stopped", code="abort")
        elif error := working.exception():
            if isinstance(error, ProducerFenced):
                return
            log.error("run %s failed", run.run_id, exc_info=error)
            end = RunErrorEvent(message="The agent failed", code="failed")
        else:
            end = RunFinishedEvent(thread_id=run.thread_id, run_id=run.run_id)
        await producer.append(line(end))


async def server_sent_events(stream: AsyncStream, offset: str) -> AsyncIterator[str]:
    """Yield one run, for a plain HttpAgent."""
    async for chunk in stream.follow(offset=offset):
        for event in chunk.messages:
            if event.get("name") != "alive":
                yield f"data: {json.dumps(event)}\n\n"
            if event["type"] in ENDS:
                return


def serve(agent: Agent) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.gather(*writing.values(), return_exceptions=True)  # A deployment: runs end first.

    app = FastAPI(lifespan=lifespan)
    app.add_middleware(CORSMiddleware, allow_origins=["http://localhost:5173"], allow_headers=["*"])

    @app.exception_handler(InvalidRequest)
    async def refuse(_: Request, error: Exception) -> Response:
        return JSONResponse({"detail": str(error)}, 400)  # A thread's id that no stream can have.

    @app.post("/agent")
    async def run_agent(run: RunAgentInput, request: Request) -> Response:
        """Start a run, once, in the background. The answer is where to read its events."""
        stream = stream_of(run.thread_id)
        thread, is_new = await begin(stream, run)
        if is_new:
            writing[run.run_id] = task = asyncio.create_task(write(stream, run, agent))
            task.add_done_callback(lambda _: writing.pop(run.run_id))
        start = thread.runs[run.run_id]
        if "text/event-stream" in request.headers.get("accept", ""):
            return StreamingResponse(server_sent_events(stream, start), media_type="text/event-stream")
        return located(stream, thread, start)

    @app.post("/agent/{thread_id}/connect")
    async def connect(thread_id: str) -> Response:
        stream = stream_of(thread_id)
        return located(stream, await load(stream), None)

    @app.post("/agent/{thread_id}/stop", status_code=204)
    async def stop(thread_id: str) -> None:
        stream = stream_of(thread_id)
        for _ in range(50 if (await load(stream)).open else 0):  # The writer may not watch yet.
            with suppress(NotFound):
                await stream.request_stop()
                break
            await asyncio.sleep(0.1)

    return app


def located(stream: AsyncStream, thread: Thread, start: str | None) -> Response:
    silent_ms = int(LOST_SECONDS * 1000)
    return JSONResponse({"stream": stream.url, "start": start, "tail": thread.tail, "silentMs": silent_ms})


async def tides(run: RunAgentInput) -> AsyncIterator[BaseEvent]:
    """Your agent. Chunks need no start and no end."""
    text = "The moon pulls the water up where it is near, and the earth turns under two such bulges. 🌊"
    for word in text.split(" "):
        await asyncio.sleep(0.2)
        yield TextMessageChunkEvent(message_id=f"{run.run_id}-answer", role="assistant", delta=f"{word} ")


app = serve(tides)
