"""Ports for servers that a test starts as processes of their own."""

import itertools
import os
import random
from collections.abc import Iterator
from typing import Final

from tidemark.server.ports import LOOPBACK, listening_socket

#: Below the range from which Linux takes the source ports of outgoing connections (32768 and up): any client
#: can take a port of that range between the moment it is found free and the moment the server binds it.
_FIRST: Final = 20_000
_LAST: Final = 32_000
#: So many processes of one test run (pytest-xdist's workers gw0, gw1, …) never hand out the same port.
_WORKERS: Final = 16


def free_port() -> int:
    """A loopback port that is free now and that this test run hands out to nobody else."""
    for port in _ports:
        try:
            listening_socket(LOOPBACK, port).close()
        except OSError:
            continue
        return port
    raise AssertionError("unreachable: the ports are a cycle")


def _ports_of(worker: int) -> Iterator[int]:
    """The ports of one worker, in a cycle that begins anywhere: other test runs use the same ports."""
    ports = range(_FIRST + worker % _WORKERS, _LAST, _WORKERS)
    begin = random.randrange(len(ports))
    return itertools.cycle([*ports[begin:], *ports[:begin]])


_ports = _ports_of(int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")))
