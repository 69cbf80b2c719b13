"""FastAPI writes a model's answer into a stream; its page reads that from Tidemark, and has a button to stop.

pip install fastapi uvicorn, and Tidemark's client
uvicorn --app-dir docs/examples fastapi_app:app        and open http://127.0.0.1:8000/
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator

from fastapi import BackgroundTasks, FastAPI
from fastapi.responses import HTMLResponse

from tidemark import AsyncStream

STREAMS = os.environ.get("STREAMS", "http://127.0.0.1:4437/v1/stream/answers")
app = FastAPI()


async def llm(question: str) -> AsyncIterator[str]:  # your model: anything that yields pieces of text
    for word in f"{question} Because the earth turns under two bulges of water.".split():
        await asyncio.sleep(0.25)
        yield word + " "


@app.post("/answers")
async def ask(question: str, tasks: BackgroundTasks) -> dict[str, str]:
    """The page learns the stream at once. The answer outlives this request, and the page's connection."""
    name = uuid.uuid4().hex
    answer = await AsyncStream.create(f"{STREAMS}/{name}", content_type="text/plain", ttl=86_400)
    tasks.add_task(write, answer, question)
    return {"name": name, "stream": answer.url}


async def write(answer: AsyncStream, question: str) -> None:
    async with answer.producer("model") as producer, answer.stop_requests() as stop:
        async for token in llm(question):
            if stop.requested:
                break
            await producer.append(token)


@app.post("/answers/{name}/stop", status_code=204)
async def stop_answer(name: str) -> None:
    await AsyncStream(f"{STREAMS}/{name}").request_stop()


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    return """<!doctype html><meta charset="utf-8"><title>An answer that survives</title>
<button id="ask">Why are there two tides a day?</button> <button id="stop" disabled>Stop</button>
<p id="answer"></p>
<script type="module">
const [ask, stop, answer] = ["ask", "stop", "answer"].map((id) => document.getElementById(id))
let name
ask.onclick = async () => {
  const asked = await fetch("/answers?question=" + encodeURIComponent(ask.textContent), { method: "POST" })
  const { stream, ...told } = await asked.json()
  name = told.name
  answer.textContent = ""
  stop.disabled = false
  const events = new EventSource(stream + "?offset=-1&live=sse") // it goes on where it was by itself
  events.addEventListener("data", (event) => answer.append(event.data))
  events.addEventListener("control", (event) => {
    if (!JSON.parse(event.data).streamClosed) return
    events.close()
    stop.disabled = true
  })
}
stop.onclick = () => fetch("/answers/" + name + "/stop", { method: "POST" })
</script>"""
