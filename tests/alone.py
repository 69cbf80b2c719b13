"""What is measured of a whole process: in one of its own, where no threads of other tests run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

_R = TypeVar("_R")


def alone(function: Callable[..., _R], *arguments: object) -> _R:
    """What a function of a module returns in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *arguments).result()
