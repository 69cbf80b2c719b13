"""One Spark session, one table, one bucket and one HTTP server for all of these tests."""

import gc
import importlib.util
import os
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stack.engines import LocalServices
from tests.support import World, make_world
from tidemark.settings import Settings

HAS_SPARK = importlib.util.find_spec("pyspark") is not None
#: What runs without Spark as well.
PURE = {"test_options.py", "test_churn.py", "test_forgetting.py"}
#: What needs Hypothesis, which Spark's environment has not.
PROPERTIES = {"test_forgetting.py"}
#: What a newer PySpark can break: the data source, the sinks and the lake. The rest runs by the oldest alone.
SOURCE = {
    "test_batch_read.py", "test_stream_read.py", "test_http_reader.py", "test_write.py",
    "test_staged_write.py", "test_lake.py", "test_tour.py",
}  # fmt: skip
HAS_HYPOTHESIS = importlib.util.find_spec("hypothesis") is not None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if collection_path.name in PROPERTIES and not HAS_HYPOTHESIS:
        return True
    if HAS_SPARK or collection_path.is_dir() or collection_path.name in PURE:
        return None
    return collection_path.name.startswith("test_")


def pytest_report_header() -> str | None:
    if HAS_SPARK:
        import pyspark

        return f"Spark {pyspark.__version__}"
    return "tests/spark: most are left out, because PySpark is not installed here: `make testspark` runs them"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What each PySpark runs is marked. And Py4J leaves its sockets to the garbage collector; nothing here
    can close them."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            if item.path.name in SOURCE:
                item.add_marker("source")
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """As above, for what is left when the last test has ended: found later, it would turn a run in
    which every test passed into one that failed."""
    if HAS_SPARK:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture(scope="module", autouse=True)
def no_thread_goes_on() -> None:
    """Not asked here: those of Spark's session go on for all tests."""


@pytest.fixture(scope="session")
def spark(services: LocalServices, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Started after the services, so that its workers know the endpoints."""
    from pyspark.sql import SparkSession

    from tests.spark.hadoop_s3a import JARS
    from tidemark.spark import register

    os.environ |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        # On a busy machine the driver may wait long for its own socket.
        "SPARK_AUTH_SOCKET_TIMEOUT": "600",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    work = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("tidemark-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.local.dir", str(work / "local"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.task.maxFailures", "4")
        .config("spark.python.authenticate.socketTimeout", "600s")
        # A failed task of a local session is not tried again unless it is asked for.
        .master("local[2,4]")
    )
    if JARS:
        builder = builder.config("spark.jars", ",".join(JARS))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def world(services: LocalServices) -> World:
    return make_world(services)


@pytest.fixture
def read(spark: Any, world: World) -> Callable[..., Any]:
    """A reader over the table: `read(subscribe="a", startingOffsets="earliest")`."""

    from tests.spark.streams import table_options

    def read_with(**options: str) -> Any:
        return spark.read.format("tidemark").options(**table_options(world), **options).load()

    return read_with


@pytest.fixture
def name() -> str:
    return f"s-{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="session")
def server(world: World) -> Iterator[Any]:
    from tests.spark.serving import ThreadedServer
    from tidemark.http.app import create_app
    from tidemark.http.backend import threaded_backend
    from tidemark.service.stores import connect

    settings = Settings(table_name=world.table_name, bucket_name=world.bucket_name)
    with ThreadedServer(
        create_app(threaded_backend(connect(settings), settings), with_metrics=True)
    ) as running:
        yield running


@pytest.fixture
def streams(world: World, server: Any, name: str) -> Any:
    from tests.spark.streams import Streams

    return Streams(world, server, name)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the test's own server, so that short streams have many."""
    from tidemark.log.read import read_page

    defaults: Any = read_page.__kwdefaults__
    monkeypatch.setitem(defaults, "limit_bytes", 250)


@pytest.fixture
def spoiling(server: Any) -> Iterator[Callable[..., None]]:
    """Spoil what the server answers: `spoiling(which, times=3)`; see `serving.Spoil`."""

    def spoil(which: Callable[[str, str, dict[str, str]], str | None], *, times: int = 10**9) -> None:
        left = [times]

        def spoil_some(method: str, path: str, headers: dict[str, str]) -> str | None:
            fault = which(method, path, headers)
            if fault is None or not left[0]:
                return None
            left[0] -= 1
            return fault

        server.spoil = spoil_some

    yield spoil
    server.spoil = lambda _method, _path, _headers: None


@pytest.fixture
def jobs(
    spark: Any, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    from tests.spark.jobs import Jobs

    monkeypatch.setattr("tidemark.spark.job.open_session", lambda _name: spark)
    return Jobs(world, capsys)


@pytest.fixture
def start(jobs: Any) -> Any:
    return jobs.start


@pytest.fixture
def where(jobs: Any) -> Any:
    return jobs.where
