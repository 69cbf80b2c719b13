"""The server, the HTTP API and the function URL, with authorization on, over real engines."""

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.authorization.tokens import ADMIN, SECRET, bearer
from tests.authorization.ways import NOT_WAITING, WAYS, Way
from tests.support import World
from tidemark.settings import Settings

_serial = itertools.count(1)


@pytest.fixture(scope="module")
def environment(world: World) -> Iterator[dict[str, str]]:
    """The environment variables of all three. No request waits for long, because only its authorization is
    tested."""
    variables = world.variables | NOT_WAITING | {"ALLOW_ANONYMOUS": "", "AUTH_SECRET": SECRET}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield variables


@pytest.fixture(scope="module", params=list(WAYS))
def way(request: pytest.FixtureRequest, environment: dict[str, str]) -> Iterator[Way]:
    with WAYS[request.param](Settings.from_environment(os.environ)) as opened:
        yield opened


@pytest.fixture(scope="module")
def local(environment: dict[str, str]) -> Iterator[Way]:
    """The local server, for tests where all three behave alike."""
    with WAYS["local"](Settings.from_environment(os.environ)) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    """A stream that nobody else uses."""
    return f"auth/{next(_serial)}"


@pytest.fixture
def stream(world: World, environment: dict[str, str], way: Way, name: str) -> str:
    """A stream with one line, made with every right."""
    answer = way(
        "PUT", f"/v1/stream/{name}", bearer(ADMIN) | {"Content-Type": "text/plain"}, b"the first line\n"
    )
    assert answer.status == 201, answer
    return name
