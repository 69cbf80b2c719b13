"""For every test: the engines, started once in each process; which tests are slow; Hypothesis's profiles."""

import importlib.util
import os
import random
import re
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.answers import LAST
from tests.available import NotAvailable, require_engine
from tests.processes import working_threads
from tests.stack.emulators import environment_for
from tests.stack.engines import LocalServices
from tests.stack.moto_engine import MotoServices
from tests.support import World, make_world
from tests.waiting import until

TESTS = Path(__file__).parent

#: DynamoDB, S3 and SQS, by the name of what DynamoDB is; the first is that of `VIA=lambda`.
ENGINES: dict[str, Callable[[], LocalServices]] = {
    "embedded": LocalServices,
    "moto": MotoServices,
    "ministack": lambda: LocalServices(engine="ministack"),
}
#: Folders that start processes, or take more than seconds. In other folders a slow file has the mark.
SLOW_FOLDERS = frozenset(
    {"artifact", "browser", "chaos", "cli", "conformance", "console", "emulated", "engine", "faults"}
    | {"fuzz", "histories", "mutations", "ops", "properties", "simulation"}
)
SLOW = re.compile(r"^pytestmark = .*\bpytest\.mark\.slow\b", re.MULTILINE)

#: The fixtures that run a test once by each way in which the application runs.
WAYS = ("door", "way")
#: What a browser or the command line sees is the same by each way: the first test of a file shows it.
FIRST_TEST_BY_EACH_WAY = ("console/", "cli/test_cli.py")

#: Spark's environment has none.
HAS_HYPOTHESIS = importlib.util.find_spec("hypothesis") is not None
#: The processes of a test run inherit it from the first, so that all have the same.
SEED = os.environ.setdefault("HYPOTHESIS_SEED", str(random.getrandbits(32)))

# What a shell starts in the background ignores Ctrl-C, and so would all that a test starts and ends by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if HAS_HYPOTHESIS:
    from hypothesis import settings

    # No test may depend on a time being short, so no profile has a deadline. A test that wants more
    # examples than others names a multiple of the profile's.
    settings.register_profile("default", deadline=None, print_blob=True)
    settings.register_profile("fast", settings.get_profile("default"), max_examples=25)
    settings.register_profile("ci", settings.get_profile("default"), database=None)
    settings.load_profile("ci" if os.environ.get("CI") else "default")


def is_slow(path: Path) -> bool:
    """Found in the text: otherwise each process of `make test-fast` imports slow files to deselect them."""
    return path.relative_to(TESTS).parts[0] in SLOW_FOLDERS or SLOW.search(path.read_text()) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if "not slow" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    return is_slow(collection_path) or None


def is_repeated(item: pytest.Item) -> bool:
    """Whether another case shows the same. A table of cases runs by the first way, its first row by each."""
    indices: dict[str, int] = item.callspec.indices if hasattr(item, "callspec") else {}
    ways = [way for way in WAYS if way in indices]
    if not ways or item.get_closest_marker("each_way"):
        return False
    return any(indices[way] for way in ways) and any(
        index for name, index in indices.items() if name not in ways
    )


def later_tests_by_another_way(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    first: dict[Path, str] = {}
    for item in items:
        place = str(item.path.relative_to(TESTS)) if TESTS in item.path.parents else ""
        if place.startswith(FIRST_TEST_BY_EACH_WAY) and hasattr(item, "callspec"):
            name = item.name.partition("[")[0]
            if name != first.setdefault(item.path, name) and "lambda" in item.callspec.params.values():
                yield item


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow files run first: several processes then end at about the same time."""
    repeated = {item for item in items if TESTS in item.path.parents and is_repeated(item)}
    repeated |= set(later_tests_by_another_way(items))
    if any("::" in named for named in config.args):  # What is named by its id is run.
        repeated.clear()
    config.hook.pytest_deselected(items=list(repeated))
    items[:] = [item for item in items if item not in repeated]
    for item in items:
        if TESTS in item.path.parents and is_slow(item.path):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """One seed for all of Hypothesis's tests, printed, so that a run can be repeated."""
    if HAS_HYPOTHESIS and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = SEED


def pytest_report_header(config: pytest.Config) -> list[str]:
    told = ["deselected: cases that run by another way; a test that is named by its id runs by each"]
    if HAS_HYPOTHESIS:
        told.append(
            f"to repeat what Hypothesis does: --hypothesis-seed={config.getoption('--hypothesis-seed')}"
        )
    return told


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The storage contract runs once on each engine; in `make test-fast` on the embedded one."""
    is_fast = "not slow" in metafunc.config.option.markexpr
    is_contract = metafunc.definition.get_closest_marker("each_engine") is not None
    if "services" in metafunc.fixturenames and is_contract and not is_fast:
        metafunc.parametrize("services", list(ENGINES), indirect=True, scope="session")


def pytest_runtest_setup() -> None:
    LAST.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What this machine lacks is a skipped test that says so, wherever a fixture or a test has found out. A
    failure shows the last requests with their answers."""
    if call.excinfo is not None and isinstance(call.excinfo.value, NotAvailable):
        try:
            pytest.skip(str(call.excinfo.value))
        except pytest.skip.Exception:
            call.excinfo = pytest.ExceptionInfo.from_current()
    report = yield
    if report.failed and LAST:
        report.sections.append(("the last requests and answers", "\n".join(LAST)))
    return report


@pytest.fixture(scope="module", autouse=True)
def no_thread_goes_on() -> Iterator[None]:
    """A thread that works on takes time and memory of later tests, and is measured with them."""
    before = working_threads()
    yield
    with suppress(AssertionError):
        until(lambda: working_threads() <= before)
    assert working_threads() <= before


@pytest.fixture(scope="session")
def start_engines() -> Iterator[Callable[[str], LocalServices]]:
    """Starts engines in memory at the first time that they are asked for; they run until the process ends."""
    running: dict[str, LocalServices] = {}
    with ExitStack() as stack:

        def start(engine: str) -> LocalServices:
            if engine not in running:
                running[engine] = stack.enter_context(ENGINES[engine]())
            return running[engine]

        yield start


@pytest.fixture(scope="session")
def services(
    request: pytest.FixtureRequest, start_engines: Callable[[str], LocalServices]
) -> Iterator[LocalServices]:
    """DynamoDB, S3 and SQS in memory, found by every boto3 client made while it lives.

    Each process of the test run (pytest-xdist's workers) has its own. Make what a test needs with
    `services.create_table(name)` and `services.create_bucket(name)`. In the storage contract they are those
    of one engine after the other, elsewhere those of `VIA=lambda`.
    """
    engine: str = getattr(request, "param", "embedded")
    require_engine(engine)
    running = start_engines(engine)
    with pytest.MonkeyPatch.context() as patch:
        # An engine that was started beside another was given no credentials: the other's were there.
        for name, value in (environment_for({}, os.environ) | running.environment).items():
            patch.setitem(os.environ, name, value)
        # Functions are loaded as they are deployed, and refuse to be open unless asked by name.
        patch.setitem(os.environ, "ALLOW_ANONYMOUS", "true")
        yield running


@pytest.fixture(scope="module")
def world(services: LocalServices) -> World:
    """A table and a bucket for each module; some folders have one for each test."""
    return make_world(services)
