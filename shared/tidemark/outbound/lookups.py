"""Runs lookups without a timeout, such as the system's DNS resolver, on threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

#: Most open lookups: in all, and for names of one domain, so that the slow names of one client leave room for
#: the others.
_AT_ONCE: Final = 64
_OF_ONE_DOMAIN: Final = 16


class TooManyLookups(OSError):
    """Too many lookups are open."""


class Lookups:
    """Single flight: callers with the same question share one lookup. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[tuple[Any, ...], Future[Any]] = {}

    def ask(self, look: Callable[..., _T], name: str, *more: object) -> Future[_T]:
        """A future with the result of `look` or its exception. Raises TooManyLookups."""
        question, domain = (look, name, *more), _domain(name)
        with self._lock:
            if (known := self._asked.get(question)) is not None:
                return known
            alike = sum(_domain(asked[1]) == domain for asked in self._asked)
            if alike >= _OF_ONE_DOMAIN or len(self._asked) >= _AT_ONCE:
                raise TooManyLookups(f"too many names are looked up at once, {alike} of *.{domain}")
            answer: Future[_T] = Future()
            answer.set_running_or_notify_cancel()  # No caller can cancel the shared answer.
            threading.Thread(target=self._look, args=(question, answer), daemon=True).start()
            self._asked[question] = answer
        return answer

    def _look(self, question: tuple[Any, ...], answer: Future[Any]) -> None:
        look, *about = question
        result, failure = None, None
        try:
            result = look(*about)
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
            failure = error.with_traceback(None)  # The traceback holds this frame, and the frame the answer.
        with self._lock:
            del self._asked[question]
        answer.set_exception(failure) if failure else answer.set_result(result)


def _domain(name: str) -> str:
    return ".".join(name.split(".")[-2:])
