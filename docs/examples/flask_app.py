"""The same as `fastapi_app.py` without a page, in Flask: a view answers at once, and a thread writes.

    pip install flask, and Tidemark's client
    flask --app docs/examples/flask_app.py run

Django is the same: two views with `Stream`, and the thread, or a task of Celery, that runs `write`.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator

from flask import Flask, request

from tidemark import Stream

STREAMS = os.environ.get("STREAMS", "http://127.0.0.1:4437/v1/stream/answers")
app = Flask(__name__)


def llm(question: str) -> Iterator[str]:  # your model: anything that yields pieces of text
    for word in f"{question} Because the earth turns under two bulges of water.".split():
        yield word + " "


@app.post("/answers")
def ask() -> dict[str, str]:
    name = uuid.uuid4().hex
    answer = Stream.create(f"{STREAMS}/{name}", content_type="text/plain", ttl=86_400)
    threading.Thread(target=write, args=(answer, request.args["question"])).start()
    return {"name": name, "stream": answer.url}


def write(answer: Stream, question: str) -> None:
    with answer.producer("model") as producer, answer.stop_requests() as stop:
        for token in llm(question):
            if stop.requested:
                break
            producer.append(token)


@app.post("/answers/<name>/stop")
def stop_answer(name: str) -> tuple[str, int]:
    Stream(f"{STREAMS}/{name}").request_stop()
    return "", 204
