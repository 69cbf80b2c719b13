"""The whole pipeline on this machine, with data it makes, checking what comes out.

Two ways, side by side, or the one that is named: `table`, where the jobs read and write the table behind
a server that has DynamoDB and S3 (`server/container.py`), and `http`, where they have the address of the
embedded server alone. Starts the server on loopback, appends messages to streams, and runs every job on them
as its own process. Ends with 0 if everything is as it should be.
"""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson
import urllib3

from tests.ports import free_port
from tests.spark.duckdb_iceberg import connect_duckdb
from tests.stack.emulators import Child, EngineFailed
from tests.stack.engines import LocalServices
from tidemark.server.ports import LOOPBACK
from tidemark.spark.job import JobFailed, find_java

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "pipeline"
STREAMS = 6
MESSAGES = 4_000
#: A body of more than 64 KB lies in S3.
LARGE = 100_000
TABLE, BLOBS = "tidemark", "tidemark-blobs"
#: What `replay` and `ingest` make.
NEW = ("ingested", "replayed")
#: A job's JVM lives for seconds here: the code that a slower compiler makes would not be worth its time.
SHORT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class NotAsItShouldBe(Exception):
    """A check failed."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def check(what: str, *, holds: bool) -> None:
    if not holds:
        raise NotAsItShouldBe(f"not so: {what}")
    say(f"  ✓ {what}")


class Pipeline:
    """`where` are the arguments that lead a job to the streams, and `environment` is that of the jobs."""

    def __init__(
        self, url: str, directory: Path, where: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.url = url
        self.directory = directory
        self.where = where
        self.environment = environment
        self.http = urllib3.PoolManager(retries=False)
        self.random = random.Random(7)
        self.catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}
        self.catalog["warehouse"] = f"file://{directory}/warehouse"
        self.names = [f"user-{index}" for index in range(STREAMS)]

    def ask(
        self, method: str, name: str, body: bytes | None = None, query: str = ""
    ) -> urllib3.BaseHTTPResponse:
        """Of a stream, or, without a name, of the bucket."""
        headers = {"Content-Type": "application/json"} if body is not None or method == "PUT" else {}
        url = f"{self.url}/{BUCKET}/{name}".rstrip("/") + query
        try:
            answer = self.http.request(method, url, headers=headers, body=body)
        except urllib3.exceptions.HTTPError as fault:
            raise NotAsItShouldBe(f"{method} {url}: the server does not answer ({fault})") from fault
        if answer.status >= 400:
            raise NotAsItShouldBe(f"{method} {url}: got {answer.status} {answer.data[:200]!r}")
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
        return [orjson.dumps(value) for value in orjson.loads(self.read(name).replace(b"][", b","))]

    def create(self) -> None:
        """The bucket and its streams, each with one message that is large."""
        self.ask("PUT", "")
        for name in self.names:
            self.ask("PUT", name)
            self.ask("POST", name, orjson.dumps({"key": "large", "text": "x" * LARGE}))

    def make(self, messages: int) -> None:
        """Messages of many appends: JSON objects that say which key they change, and to what."""
        for name in self.names:
            for _ in range(messages // 100):
                self.ask("POST", name, orjson.dumps([self.message() for _ in range(100)]))

    def message(self) -> dict[str, object]:
        at = {"n": self.random.random()}
        return {"key": f"k{self.random.randrange(50)}", "at": at, "text": "x" * 120}

    def job(self, name: str, *arguments: str, by_spark: bool = True) -> str:
        """Runs it as spark-submit would, or as a command, its progress on standard error; what it wrote to
        standard output."""
        where = ["--url", self.url] if name in {"ingest", "replay"} else self.where
        program = [str(ROOT / "pipeline" / f"{name}.py")] if by_spark else ["-m", "tidemark.cli", name]
        command = [sys.executable, *program, *where, "--bucket", BUCKET, *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=self.environment)
        if done.returncode:
            raise NotAsItShouldBe(f"the {name} job ended with {done.returncode}: see its last line above")
        sys.stdout.write("".join(f"  {line}\n" for line in done.stdout.splitlines()))
        return done.stdout

    def archive(self, *, by_spark: bool = True) -> str:
        """Archives what has come since it ran last."""
        return self.job("archive", "--pattern", ".*", *self.table(), by_spark=by_spark)

    def table(self) -> list[str]:
        """Of a job: the Iceberg table, whose catalog is a file."""
        properties = [f"--catalog-property={name}={value}" for name, value in self.catalog.items()]
        return ["--iceberg", "lake.messages", *properties]

    def path(self, name: str) -> str:
        return str(self.directory / name)


def make_data(pipeline: Pipeline) -> None:
    pipeline.create()
    pipeline.make(MESSAGES)
    say(f"  {STREAMS} streams have {MESSAGES + 1} messages each")


def archive_and_compare(pipeline: Pipeline) -> None:
    first = pipeline.archive()
    made = STREAMS * (MESSAGES + 1)
    check(f"{made} messages were archived", holds=f"messages={made} " in first)
    pipeline.make(500)
    second = pipeline.archive()
    check(
        f"the second run took the {STREAMS * 500} new ones alone",
        holds=f"messages={STREAMS * 500} " in second,
    )
    compare_table(pipeline, pipeline.names)


def replay_and_compare(pipeline: Pipeline) -> None:
    replay = [*pipeline.table(), "--from-bucket", BUCKET, "--stream", "user-0"]
    replay += ["--to", "replayed", "--staging", pipeline.path("staging"), "--id", "replay-user-0"]
    pipeline.job("replay", *replay)
    check("the replay is byte-exact", holds=pipeline.read("replayed") == pipeline.read("user-0"))
    pipeline.job("replay", *replay)
    check("a second run of it adds nothing", holds=pipeline.read("replayed") == pipeline.read("user-0"))


def ingest_and_compare(pipeline: Pipeline) -> None:
    lines = [orjson.dumps({"n": index}) for index in range(5_000)]
    Path(pipeline.path("lines.json")).write_bytes(b"\n".join(lines))
    ingest = ["--input", pipeline.path("lines.json"), "--format", "json", "--stream", "ingested", "--create"]
    pipeline.job("ingest", *ingest, "--staging", pipeline.path("staging"), "--id", "lines")
    check("every line is in the stream once", holds=sorted(pipeline.messages("ingested")) == sorted(lines))


def new_and_compare(pipeline: Pipeline) -> None:
    """The streams that replay and ingest have made come into the table as well, this time without Spark."""
    pipeline.archive(by_spark=False)
    compare_table(pipeline, sorted([*pipeline.names, *NEW]))


def compare_table(pipeline: Pipeline, every: Sequence[str]) -> None:
    found = ask_duckdb(pipeline)
    for stream, messages, size, keys in found:
        say(f"  {stream}: {messages} messages, {size} bytes, {keys} keys")
    check(f"the table has {len(every)} streams", holds=[stream for stream, *_ in found] == list(every))
    # In an array there is a comma or a bracket for each message, and one bracket more.
    whole = {stream: len(pipeline.read(stream).replace(b"][", b",")) for stream in every}
    same = all(size + messages + 1 == whole[stream] for stream, messages, size, _ in found)
    check("the table has every byte of them", holds=same)


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
    return found


def count_and_compare(pipeline: Pipeline) -> None:
    said = pipeline.job("stats", "--pattern", "user-.*", *pipeline.table())
    behind = [line.split()[-1] for line in said.splitlines()[1 : STREAMS + 1]]
    check("the table is behind in no stream", holds=behind == ["0"] * STREAMS)


@contextlib.contextmanager
def serving(way: str, directory: Path) -> Iterator[Pipeline]:
    """The server as a process of its own, and the pipeline that it is for."""
    port = free_port()
    url = f"http://{LOOPBACK}:{port}"
    with contextlib.ExitStack() as stack:
        if way == "table":
            services = stack.enter_context(LocalServices(directory / "data"))
            services.create_table(TABLE)
            services.create_bucket(BLOBS)
            command, engines = ["tidemark.server.container"], services.environment
            where = ["--table", TABLE, "--blob-bucket", BLOBS]
        else:
            command, engines = ["tidemark.cli", "serve"], {"DATA_DIR": str(directory / "data")}
            where = ["--url", url]
        # Each refused request would be a line, and the jobs' writers ask what they know will be refused.
        own = {"HOST": LOOPBACK, "PORT": str(port), "LOG_LEVEL": "ERROR"}
        names = {"TABLE_NAME": TABLE, "BUCKET_NAME": BLOBS}
        server = Child("server", directory / "server.log")
        stack.callback(server.stop)
        server.start([sys.executable, "-m", *command], {**os.environ, **engines, **names, **own})
        server.wait_until(lambda: is_healthy(url))
        yield Pipeline(url, directory, where, os.environ | engines | {"SPARK_SUBMIT_OPTS": SHORT_JVM})


def is_healthy(url: str) -> bool:
    with contextlib.suppress(urllib3.exceptions.HTTPError):
        return urllib3.request("GET", f"{url}/v1/health", retries=False).status == 200
    return False


STEPS = {
    "Data": make_data,
    "Archive in two runs, queried by DuckDB": archive_and_compare,
    "Replay the archive into a new stream": replay_and_compare,
    "Ingest JSON lines": ingest_and_compare,
    "Archive those too": new_and_compare,
    "Stats": count_and_compare,
}
WAYS = {
    "table": "The jobs on the table, with a server on the same table",
    "http": "The jobs over HTTP, from the embedded server",
}


def run(way: str) -> int:
    """The exit code."""
    started = time.monotonic()
    say(WAYS[way])
    try:
        find_java()
        with (
            tempfile.TemporaryDirectory(prefix="tidemark-pipeline-") as name,
            serving(way, Path(name)) as pipeline,
        ):
            for number, (title, step) in enumerate(STEPS.items(), 1):
                say(f"{number} of {len(STEPS)}: {title}")
                step(pipeline)
    except (EngineFailed, JobFailed, NotAsItShouldBe) as fault:
        say(f"  ✗ {fault}")
        return 1
    say(f"All of it is as it should be, in {time.monotonic() - started:.0f} s.")
    return 0


def run_side_by_side() -> int:
    """Each way in a process of its own, because a job mostly keeps one core busy. The exit code."""
    children = []
    for way in WAYS:
        command = [sys.executable, "-m", "tests.pipeline", way]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        teller = threading.Thread(target=tell, args=(way, child))
        teller.start()
        children.append((child, teller))
    for _, teller in children:
        teller.join()
    codes = [child.wait() for child, _ in children]
    return 1 if any(codes) else 0


def tell(way: str, child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        say(f"[{way}] {line.rstrip()}")


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        return run_side_by_side()
    if len(arguments) > 1 or arguments[0] not in WAYS:
        say(f"give {' or '.join(WAYS)}, or nothing for both, got {' '.join(arguments)}")
        return 2
    return run(arguments[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
