"""During a deployment the release before and this one write to one stream."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from tests.lambdas.releases import TODAY, environments
from tests.support import World

pytestmark = pytest.mark.slow

#: The commit of the release before (`CONTRIBUTING.md`, A release).
RELEASE_BEFORE: Final = "b51f5b7d"
WRITERS: Final = 12
LARGE: Final = (3000,) * 8
MIXED: Final = (40, 3000, 200, 30_000, 1500, 9000)


def test_what_two_releases_acknowledge_is_there_once(world: World) -> None:
    producer = "a producer with a name so long that a list of twelve is deflated"
    with environments([RELEASE_BEFORE, TODAY] * (WRITERS // 2), world.variables) as running:
        for number, (sizes, claims) in enumerate(
            [(LARGE, ""), (MIXED, ""), (LARGE, producer), (MIXED, producer)]
        ):
            path = f"/v1/stream/two/{number}"
            assert running[0].do("create", path) == 201
            for writer, environment in enumerate(running):
                environment.ask("write", path, f"{claims}{writer:02}" if claims else None, writer, sizes)
            answers = [tuple(answer) for environment in running for answer in environment.answer()]
            assert {status for _, _, status in answers} <= {200, 204}, Counter(answers)
            appended = Counter((name, size) for name, size, _ in answers)
            for reader in (0, -1):
                status, found = running[reader].do("read", path)
                assert status == 200
                assert Counter(map(tuple, found)) == appended, running[reader].release
