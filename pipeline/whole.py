"""The whole pipeline on this machine, with data it makes, checking what comes out.

Starts the engines and the HTTP server on loopback, appends messages to streams, and runs every
job on them as its own process. Ends with 0 if everything is as it should be.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import urllib3

from pipeline.duckdb_iceberg import connect_duckdb
from tidemark.local.engines import LocalServices
from tidemark.spark.job import JobFailed, find_java
from tidemark.spark.snapshots.folds import LastByKey, MergePatch, fold_messages

ROOT = Path(__file__).resolve().parents[1]
#: What is kept of a run.
PICTURES = ROOT / ".data" / "pipeline"
BUCKET = "pipeline"
STREAMS = 6
MESSAGES = 4_000
TABLE, BLOBS = "tidemark", "tidemark-blobs"
START_SECONDS = 60.0
#: How often the making of data says how far it is.
TELL_SECONDS = 2.0


class NotAsItShouldBe(Exception):
    """A check failed."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def check(what: str, *, holds: bool) -> None:
    if not holds:
        raise NotAsItShouldBe(what)
    say(f"  ✓ {what}")


class Pipeline:
    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory
        self.http = urllib3.PoolManager(retries=False)
        self.random = random.Random(7)
        self.catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}
        self.catalog["warehouse"] = f"file://{directory}/warehouse"
        self.names = [f"user-{index}" for index in range(STREAMS)]
        self.has_buckets = self.http.request("PUT", f"{url}/{BUCKET}").status == 201
        self.bucket = BUCKET if self.has_buckets else "v1"
        self.root = f"{url}/{BUCKET}" if self.has_buckets else f"{url}/v1/stream"

    def ask(
        self, method: str, name: str, body: bytes | None = None, query: str = ""
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Content-Type": "application/json"} if body is not None or method == "PUT" else {}
        answer = self.http.request(method, f"{self.root}/{name}{query}", headers=headers, body=body)
        if answer.status >= 400:
            raise NotAsItShouldBe(f"{method} {name}: {answer.status} {answer.data[:200]!r}")
        return answer

    def read(self, name: str) -> bytes:
        """A stream's bytes, as a client reads them."""
        pieces, offset = [], "-1"
        while True:
            answer = self.ask("GET", name, query=f"?offset={offset}")
            pieces.append(answer.data)
            offset = answer.headers["Stream-Next-Offset"]
            if answer.headers.get("Stream-Up-To-Date") == "true":
                return b"".join(pieces)

    def messages(self, name: str) -> list[bytes]:
        return [
            orjson.dumps(value)
            for page in [self.read(name)]
            for value in orjson.loads(page.replace(b"][", b","))
        ]

    def make(self, messages: int) -> None:
        """Messages of many appends: JSON objects that say which key they change, and to what."""
        shown = time.monotonic()
        for index, name in enumerate(self.names):
            if time.monotonic() - shown > TELL_SECONDS:
                shown = time.monotonic()
                say(f"  {index * messages} of {len(self.names) * messages} messages are appended")
            for _ in range(messages // 100):
                values = [
                    {
                        "key": f"k{self.random.randrange(50)}",
                        "at": {"n": self.random.random()},
                        "text": "x" * 120,
                    }
                    for _ in range(100)
                ]
                self.ask("POST", name, orjson.dumps(values))

    def job(self, name: str, *arguments: str) -> str:
        """Runs it as spark-submit would, its progress on standard error; what it wrote to standard output."""
        where = ["--table", TABLE, "--blob-bucket", BLOBS, "--bucket", self.bucket]
        command = [sys.executable, str(ROOT / "pipeline" / f"{name}.py"), *where, *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise NotAsItShouldBe(f"the {name} job ended with {done.returncode}")
        sys.stdout.write("".join(f"  {line}\n" for line in done.stdout.splitlines()))
        return done.stdout

    def archive(self) -> str:
        """Runs the archive job for what has come since it ran last."""
        out, checkpoint = self.path("lake"), self.path("checkpoint")
        return self.job("archive", "--pattern", "user-.*", "--out", out, "--checkpoint", checkpoint)

    def table(self) -> list[str]:
        """Of a job: the Iceberg table, whose catalog is a file."""
        properties = [f"--catalog-property={name}={value}" for name, value in self.catalog.items()]
        return ["--iceberg", "lake.messages", *properties]

    def path(self, name: str) -> str:
        return str(self.directory / name)


def run(pipeline: Pipeline) -> None:
    say(f"1 of 8: Data: {STREAMS} streams in {pipeline.bucket}")
    for name in pipeline.names:
        pipeline.ask("PUT", name)
    pipeline.make(MESSAGES)
    archive_and_compare(pipeline)
    lake_and_compare(pipeline)
    replay_and_compare(pipeline)
    ingest_and_compare(pipeline)
    fold_and_compare(pipeline)
    say("7 of 8: Stats")
    PICTURES.mkdir(parents=True, exist_ok=True)
    consumer = f"archive={pipeline.path('checkpoint')}"
    counted = ["--pattern", "user-.*", "--archive", pipeline.path("lake"), "--consumer", consumer]
    said = pipeline.job("stats", *counted, "--plot", str(PICTURES / "stats.png"))
    check("the archive is not behind in any stream", holds=said.count(" 0\n") >= STREAMS)
    check(
        f"the plot was drawn: {PICTURES / 'stats.png'}", holds=(PICTURES / "stats.png").stat().st_size > 1000
    )
    trim_and_ask(pipeline)


def archive_and_compare(pipeline: Pipeline) -> None:
    say("2 of 8: Archive, in two runs")
    first = pipeline.archive()
    check(f"{STREAMS * MESSAGES} messages were archived", holds=f"messages={STREAMS * MESSAGES} " in first)
    pipeline.make(500)
    second = pipeline.archive()
    check(
        f"the second run took the {STREAMS * 500} new ones alone",
        holds=f"messages={STREAMS * 500} " in second,
    )
    archived = read_archive(pipeline.path("lake"))
    for name in pipeline.names:
        same = b"[" + b",".join(archived[name]) + b"]" == pipeline.read(name).replace(b"][", b",")
        check(f"the archive of {name} is the stream, byte for byte", holds=same)


def lake_and_compare(pipeline: Pipeline) -> None:
    say("3 of 8: An Iceberg table, queried by DuckDB")
    checkpoint = ["--checkpoint", pipeline.path("lake-checkpoint")]
    pipeline.job("archive", "--pattern", "user-.*", *pipeline.table(), *checkpoint)
    archived = read_archive(pipeline.path("lake"))
    expected = [(name, len(values), sum(map(len, values))) for name, values in sorted(archived.items())]
    check("the table has what the archive has", holds=[row[:3] for row in ask_duckdb(pipeline)] == expected)


def ask_duckdb(pipeline: Pipeline) -> list[tuple[str, int, int, int]]:
    """Of each stream in the table the messages, bytes and keys."""
    from tidemark.spark.lake import LakeTable

    table = LakeTable("default", pipeline.catalog, "lake.messages").load()
    query = (
        "SELECT stream, count(*), sum(bytes), count(DISTINCT key) FROM iceberg_scan(?) "
        "GROUP BY stream ORDER BY stream"
    )
    with connect_duckdb() as duckdb:
        found: list[tuple[str, int, int, int]] = duckdb.execute(query, [table.metadata_location]).fetchall()
    for stream, messages, size, keys in found:
        say(f"  {stream}: {messages} messages, {size} bytes, {keys} keys")
    return found


def trim_and_ask(pipeline: Pipeline) -> None:
    say("8 of 8: Streams let go of what the table has, and DuckDB is asked for it")
    names, checkpoint = ("ingested", "replayed"), ["--checkpoint", pipeline.path("more-checkpoint")]
    whole = {name: pipeline.read(name) for name in names}
    which = ["--subscribe", ",".join(names), *pipeline.table()]
    pipeline.job("archive", *which, *checkpoint)
    said = pipeline.job("trim", *which, "--archived", "--keep-hours", "0")
    check("both streams let go of all that they had", holds=f"trimmed={len(names)} " in said)
    for name in names:
        answer = pipeline.http.request("GET", f"{pipeline.root}/{name}?offset=-1")
        check(f"{name} answers with 410, and with where to go on", holds=answer.status == 410)
        rest = pipeline.ask("GET", name, query=f"?offset={answer.headers['Stream-Next-Offset']}")
        check("nothing is left behind that", holds=rest.data == b"[]")
    found = ask_duckdb(pipeline)
    sizes = {stream: size + messages for stream, messages, size, _ in found}
    # In an array there is a comma or a bracket for each message, and one bracket more.
    same = all(sizes[name] + 1 == len(whole[name].replace(b"][", b",")) for name in names)
    check("the table has every byte of them", holds=same)
    plot_table(found, PICTURES / "table.png")


def plot_table(found: list[tuple[str, int, int, int]], path: Path) -> None:
    """For each stream a bar for its bytes, with its messages and keys in words."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 1.4 + 0.3 * len(found)), layout="constrained")
    bars = axes.barh([stream for stream, *_ in found], [size / 1000 for _, _, size, _ in found], height=0.6)
    words = [f"{messages:,} messages" + (f", {keys} keys" if keys else "") for _, messages, _, keys in found]
    axes.bar_label(bars, words, padding=4, fontsize="small")
    axes.margins(x=0.3)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("kB in the table, by stream")
    total = sum(messages for _, messages, _, _ in found)
    axes.set_title(f"lake.messages: {total:,} messages, by DuckDB", loc="left")
    figure.savefig(path, dpi=150)
    plt.close(figure)
    check(f"what is in the table was drawn: {path}", holds=path.stat().st_size > 1000)


def read_archive(directory: str) -> dict[str, list[bytes]]:
    from pyarrow import dataset

    files = [str(path) for path in Path(directory).rglob("part-*.parquet")]
    table = dataset.dataset(files, format="parquet").to_table(columns=["stream", "offset", "value"])
    streams: dict[str, list[bytes]] = {}
    for row in table.sort_by([("stream", "ascending"), ("offset", "ascending")]).to_pylist():
        streams.setdefault(row["stream"], []).append(row["value"])
    return streams


def replay_and_compare(pipeline: Pipeline) -> None:
    say("4 of 8: Replay the archive into a new stream")
    replay = ["--archive", pipeline.path("lake"), "--from-bucket", pipeline.bucket, "--stream", "user-0"]
    replay += ["--to", "replayed", "--staging", pipeline.path("staging"), "--id", "replay-user-0"]
    pipeline.job("replay", *replay)
    check("the replay is byte-exact", holds=pipeline.read("replayed") == pipeline.read("user-0"))
    pipeline.job("replay", *replay)
    check("a second run of it adds nothing", holds=pipeline.read("replayed") == pipeline.read("user-0"))


def ingest_and_compare(pipeline: Pipeline) -> None:
    say("5 of 8: Ingest JSON lines")
    lines = [orjson.dumps({"n": index}) for index in range(5_000)]
    Path(pipeline.path("lines.json")).write_bytes(b"\n".join(lines))
    ingest = ["--input", pipeline.path("lines.json"), "--format", "json", "--stream", "ingested", "--create"]
    pipeline.job("ingest", *ingest, "--staging", pipeline.path("staging"), "--id", "lines")
    check("every line is in the stream once", holds=sorted(pipeline.messages("ingested")) == sorted(lines))


def fold_and_compare(pipeline: Pipeline) -> None:
    say("6 of 8: Snapshots")
    histories = {name: pipeline.messages(name) for name in pipeline.names}
    fold = ["--pattern", "user-.*", "--fold", "last-by-key", "--key", "key"]
    fold += ["--consumer", f"archive={pipeline.path('checkpoint')}"]
    if not pipeline.has_buckets:
        say("  This server has no buckets, so it has no snapshots: the folds are compared and not published.")
        pipeline.job("snapshot", *fold, "--dry-run", pipeline.path("folds"))
        folded = folds_in(pipeline.path("folds"))
        compare_folds(histories, folded)
        return
    pipeline.job("snapshot", *fold)
    pipeline.make(100)
    for name in pipeline.names:
        snapshot, updates = bootstrap(pipeline, name)
        by_key = LastByKey()
        whole = fold_messages(by_key, by_key.load(None), [*histories[name], *updates])
        rebuilt = fold_messages(by_key, by_key.load(snapshot), updates)
        same = orjson.loads(by_key.dump(rebuilt)) == orjson.loads(by_key.dump(whole))
        check(
            f"bootstrap of {name}, {len(updates)} updates after it, is the fold of its full history",
            holds=same,
        )
    pipeline.archive()


def folds_in(directory: str) -> dict[str, Any]:
    lines = [line for path in Path(directory).glob("part-*.json") for line in path.read_bytes().splitlines()]
    return {row["stream"]: orjson.loads(row["detail"]) for row in map(orjson.loads, lines)}


def compare_folds(histories: dict[str, list[bytes]], folded: dict[str, Any]) -> None:
    by_key = LastByKey()
    for name, messages in histories.items():
        expected = orjson.loads(by_key.dump(fold_messages(by_key, by_key.load(None), messages)))
        check(f"the fold of {name} is that of its {len(messages)} messages", holds=folded[name] == expected)
    patch = MergePatch()
    documents = fold_messages(patch, None, histories["user-0"])
    check("a merge patch of the same messages is a document", holds=isinstance(documents, dict))


def bootstrap(pipeline: Pipeline, name: str) -> tuple[bytes | None, list[bytes]]:
    """The snapshot and the messages after it, as a new client gets them."""
    answer = pipeline.ask("GET", f"{name}/bootstrap")
    boundary = answer.headers["Content-Type"].partition("boundary=")[2].strip('"').encode()
    parts = answer.data.split(b"--" + boundary)[1:-1]
    bodies = [part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n") for part in parts]
    return bodies[0] or None, bodies[1:]


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[str]:
    """The engines in memory, and the HTTP server over them as a process of its own."""
    with LocalServices(in_memory=True) as services:
        os.environ.update(services.environment)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = os.environ | {
            "PORT": str(port),
            "HOST": "127.0.0.1",
            "DATA_DIR": str(directory / "data"),
        }
        command = [sys.executable, "-m", "tidemark.local"]
        server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, server)
            yield url
        finally:
            server.terminate()
            server.wait(30)


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    http = urllib3.PoolManager(retries=False)
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            if http.request("GET", f"{url}/v1/health").status == 200:
                return
        time.sleep(0.1)
    raise NotAsItShouldBe("the server did not start")


def main() -> int:
    started = time.monotonic()
    try:
        find_java()
        with tempfile.TemporaryDirectory(prefix="tidemark-pipeline-") as name, serving(Path(name)) as url:
            run(Pipeline(url, Path(name)))
    except (NotAsItShouldBe, JobFailed) as fault:
        say(f"  ✗ {fault}")
        return 1
    say(f"All of it is as it should be, in {time.monotonic() - started:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
