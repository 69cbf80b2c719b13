"""Bits that flip at rest in a server's folder: its answers are as before, or 503, or it does not start and
says why; and `verify` names the damage wherever that is so.

Each flip is of one bit, in a copy of a small store that has some of everything. `TIDEMARK_FLIPS` asks for
more of them, and `TIDEMARK_FLIPS_SEED` for others.
"""

import asyncio
import json
import os
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.answers import Answer
from tests.authorization.ways import Asgi
from tests.engine.serving import serving
from tidemark.blobs import PUT_HEADERS
from tidemark.cli.store import embedded_stores, verify
from tidemark.engine.sqlite_file import UnusableDatabase
from tidemark.http.app import create_app
from tidemark.janitor.sweep import sweep
from tidemark.log.due import Packing
from tidemark.protocol.errors import ProtocolError
from tidemark.server.blob_urls import BlobUrls
from tidemark.server.system import EmbeddedSystem
from tidemark.service.append import INLINE_BYTES
from tidemark.service.snapshots import MAX_ANSWER_BYTES
from tidemark.settings import Settings

FLIPS = int(os.environ.get("TIDEMARK_FLIPS", "5"))
SEED = os.environ.get("TIDEMARK_FLIPS_SEED", "1")
TEXT = {"Content-Type": "text/plain"}
STREAMS = [*(f"s{number}" for number in range(6)), "closed", "fork", "gone", "large", "packed", "tasks/a"]
DOCUMENTS = ["small", "upload", "huge"]
REFUSED = 503
SEEN = ("content-type", "etag", "stream-next-offset", "stream-up-to-date", "stream-closed", "producer-seq")


@contextmanager
def served(folder: Path) -> Iterator[tuple[EmbeddedSystem, Asgi]]:
    """Raises UnusableDatabase, ProtocolError for a store that no server starts on."""
    keys = str(folder / "webhook-keys")
    settings = replace(Settings(), webhook_keys=keys, public_url="http://streams.example")
    with closing(EmbeddedSystem(settings, folder, folder / "blobs")) as system, serving(system) as door:
        yield system, Asgi(BlobUrls(create_app(system.backend), system.blobs), door.runner)


def claim(seq: int) -> dict[str, str]:
    return TEXT | {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(seq)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a server that has ended."""
    folder = tmp_path_factory.mktemp("store")
    with served(folder) as (system, ask):
        _fill(system, ask)
    return folder


def _fill(system: EmbeddedSystem, ask: Asgi) -> None:
    def done(method: str, target: str, body: bytes = b"", headers: dict[str, str] = TEXT) -> Answer:
        answer = ask(method, target, headers, body)
        assert answer.status < 300, (method, target, answer)
        return answer

    done("PUT", "/docs", headers={})
    done("PUT", "/v1/stream/wake")
    follow = {"type": "pull-wake", "pattern": "tasks/*", "wake_stream": "wake"}
    asked = json.dumps(follow).encode(), {"Content-Type": "application/json"}
    done("PUT", "/v1/stream/__ds/subscriptions/mailer", *asked)
    for name in STREAMS:
        if name != "fork":
            done("PUT", f"/v1/stream/{name}")
        for seq in range(30):
            if name != "fork":
                done("POST", f"/v1/stream/{name}", f"{name} {seq} {'x' * seq},".encode(), claim(seq))
        if name == "closed":
            forked = TEXT | {"Stream-Forked-From": "/v1/stream/s1", "Stream-Fork-Offset": f"{40:016d}"}
            done("PUT", "/v1/stream/fork", headers=forked)
            done("POST", f"/v1/stream/{name}", headers=TEXT | {"Stream-Closed": "true"})
    done("DELETE", "/v1/stream/gone")
    for seq in range(2):
        done("POST", "/v1/stream/large", b"L" * (INLINE_BYTES + 1), claim(30 + seq))
    system.stores.packing = Packing.after_seconds(0)
    done("POST", "/v1/stream/packed", b"last", claim(30))
    assert ask.run(asyncio.to_thread(sweep, system.stores)).packed > 0
    for name, size in zip(DOCUMENTS, (1000, 1000, MAX_ANSWER_BYTES + 1), strict=True):
        done("PUT", f"/docs/{name}")
        offset = done("POST", f"/docs/{name}", b"folded").headers["stream-next-offset"]
        done("POST", f"/docs/{name}", b"and more")
        body, path = (name * size)[:size].encode(), f"/docs/{name}/snapshot/{offset}"
        if name == "small":
            done("PUT", path, body)
            continue
        upload = json.loads(done("POST", f"{path}/upload").body)
        done("PUT", upload["url"].removeprefix("http://streams.example"), body, dict(PUT_HEADERS))
        done("PUT", path, headers=TEXT | {"Snapshot-Upload": upload["upload"]})


Question = tuple[str, str, dict[str, str], bytes]


def questions() -> Iterator[Question]:
    targets = [f"/v1/stream/{name}?offset={at}" for name in STREAMS for at in ("-1", f"{40:016d}", "now")]
    targets += [f"/docs/{name}/{of}" for name in DOCUMENTS for of in ("snapshot", "bootstrap")]
    targets += ["/v1/streams", "/v1/buckets", "/v1/forks?of=/v1/stream/s1", "/docs/streams"]
    targets += ["/v1/stream/__ds/subscriptions/mailer", "/v1/stream/no"]
    yield from (("GET", target, {}, b"") for target in targets)
    yield from (("HEAD", f"/v1/stream/{name}", {}, b"") for name in STREAMS)


def writes() -> Iterator[list[Question]]:
    """And what they leave behind: of one stream each."""
    for name in ("s0", "s5", "packed", "large"):
        append = partial(lambda name, seq: ("POST", f"/v1/stream/{name}", claim(seq), b"appended"), name)
        yield [*map(append, (29, 40, 31, 32, 33)), ("GET", f"/v1/stream/{name}?offset=-1", {}, b"")]
    yield [("PUT", "/v1/stream/new", TEXT, b"new"), ("GET", "/v1/stream/new?offset=-1", {}, b"")]


def answered(ask: Asgi, method: str, target: str, headers: dict[str, str], body: bytes) -> Any:
    """What counts of an answer, or REFUSED."""
    answer = ask(method, target, headers, body)
    if answer.status in {302, 303, 307}:
        answer = ask("GET", answer.headers["location"].removeprefix("http://streams.example"))
        if int(answer.headers["content-length"]) > len(answer.body):
            return REFUSED  # The connection ends before the answer does.
    if answer.status == REFUSED:
        return REFUSED
    return answer.status, [answer.headers.get(name) for name in SEEN], answer.body


def answers(folder: Path) -> list[Any] | str:
    """To all questions, to writes, and to the questions again behind a round of the janitor; or why no server
    starts."""
    try:
        with served(folder) as (system, ask):
            ids = count()
            system.stores.new_id = lambda: f"{next(ids):016d}"
            found = [answered(ask, *question) for question in questions()]
            for number, group in enumerate(writes()):
                ids = count(1000 * number)
                for question in group:  # What was refused is not there later.
                    is_refused = question is not group[0] and found[-1] == REFUSED
                    found.append(REFUSED if is_refused else answered(ask, *question))
            with suppress(ProtocolError):
                ask.run(asyncio.to_thread(sweep, system.stores))
            quiet = [question for question in questions() if re.search(r"/s[1-4]|docs/\w+/", question[1])]
            return found + [answered(ask, *question) for question in quiet]
    except (ProtocolError, UnusableDatabase) as refusal:
        return str(refusal)


def places(folder: Path, kind: str) -> list[tuple[Path, int]]:
    """Where a bit may flip: in pages, in the keys in them, in what lies in them, in blobs."""
    if kind == "blob":
        found = [path for path in (folder / "blobs").rglob("*") if path.is_file()]
        return [(path, place) for path in found for place in range(0, path.stat().st_size, 997)]
    path = folder / "tidemark.db"
    data = path.read_bytes()
    patterns = {
        "page": rb"[^\0]",
        "key": rb"log/v1/[\w/]+#[\w-]{16}\d{16}|bucket/\w+stream/[\w/]+|formatlatest",
        "item": rb'\{"pk".{100,200}',
    }
    spans = re.finditer(patterns[kind], data, re.DOTALL if kind == "page" else 0)
    return [(path, place) for found in spans for place in range(*found.span())]


@pytest.mark.parametrize("kind", ["page", "key", "item", "blob"])
def test_a_flipped_bit_changes_no_answer_but_to_503(folder: Path, tmp_path: Path, kind: str) -> None:
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def laid_out(copy: Path) -> Path:
        for path, data in whole.items():
            (copy / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            (copy / path.relative_to(folder)).write_bytes(data)
        return copy

    expected = answers(laid_out(tmp_path))
    assert isinstance(expected, list)
    assert REFUSED not in expected
    assert [each[0] for each in expected if each[0] >= 500] == []
    chance, where, problems = random.Random(f"{kind} {SEED}"), places(folder, kind), list[str]()
    for _ in range(FLIPS):
        copy = laid_out(tmp_path)
        (copy / "tidemark.db-wal").unlink(missing_ok=True)
        path, place = chance.choice(where)
        damaged = bytearray(whole[path])
        damaged[place] ^= 1 << chance.randrange(8)
        (copy / path.relative_to(folder)).write_bytes(damaged)
        try:
            faults = list(verify(embedded_stores(copy)))
        except UnusableDatabase as unusable:
            faults = [str(unusable)]
        found = answers(copy)
        problems += [f"{path.name} at {place}: {each}" for each in judged(expected, found, faults)]
    assert not problems, "\n".join(problems)


def judged(expected: list[Any], found: list[Any] | str, faults: list[str]) -> Iterator[str]:
    if isinstance(found, str):
        if not faults:
            yield f"no server starts ({found}), and verify finds nothing"
        return
    for got, right in zip(found, expected, strict=True):
        if got not in (REFUSED, right):
            yield f"{got!r:.300} in place of {right!r:.300}"
    if REFUSED in found and not faults:
        yield "503, and verify finds nothing"


@pytest.mark.parametrize("row", ["roster/", "sub/mailer."])
@pytest.mark.parametrize("behind", [0, 90])
def test_a_damaged_subscription_stops_no_server(folder: Path, tmp_path: Path, row: str, behind: int) -> None:
    """Whether its key or its item is damaged. The streams are served."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "tidemark.db"
    data = bytearray(path.read_bytes())
    for found in re.finditer(re.escape(row.encode()) + rb'[\w/-]*\{"pk"', bytes(data)):
        data[found.start() + behind] ^= 2
    path.write_bytes(data)
    assert list(verify(embedded_stores(tmp_path)))
    with served(tmp_path) as (_, ask):
        read = ask("GET", "/v1/stream/s0?offset=-1")
        assert (read.status, ask("POST", "/v1/stream/s0", TEXT, b"more").status) == (200, 204)
