"""Lambda's execution environments, as threads: each serves one invocation at a time and is used again.

In Lambda an environment is a process. Here the environments of a function share one loaded module, so that
hundreds of waiting requests do not cost hundreds of processes; each has an event loop of its own, as Mangum
expects.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import os
import queue
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.stack.events import ACCOUNT_ID, Event
from tests.stack.template import Function
from tidemark.server.request_log import report_failure

MAX_REQUEST_BYTES: Final = 6 * 1024 * 1024
_MAX_RESPONSE_BYTES: Final = MAX_REQUEST_BYTES + 100

Handler = Callable[[Any, Any], Any]
_Job = tuple[bytes, "LambdaContext", Future[bytes]]
_serial = itertools.count()
#: Held while a module is loaded, because loading changes the process's environment variables.
_loading = threading.Lock()


class InvocationFailed(RuntimeError):
    """The function returned no response. The reason is on standard error, as it would be in its log."""


class FunctionNotLoaded(RuntimeError):
    """The function's module cannot be imported, or has no such handler."""


@dataclass(frozen=True, slots=True)
class LambdaContext:
    """The second argument of a handler, with the fields that our handlers and Powertools read."""

    function_name: str
    memory_limit_in_mb: str
    invoked_function_arn: str
    deadline: float
    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self.deadline - time.monotonic()) * 1000))


def make_context(function: Function) -> LambdaContext:
    region = os.environ.get("AWS_REGION", "us-east-1")
    return LambdaContext(
        function_name=function.name,
        memory_limit_in_mb=str(function.memory_mb),
        invoked_function_arn=f"arn:aws:lambda:{region}:{ACCOUNT_ID}:function:{function.name}",
        deadline=time.monotonic() + function.timeout_seconds,
    )


def load_handler(function: Function) -> Handler:
    """Imports the function's file under a name of its own. Raises FunctionNotLoaded."""
    name = f"_tidemark_function_{next(_serial)}_{function.name}"
    specification = importlib.util.spec_from_file_location(name, function.module)
    if specification is None or specification.loader is None:
        raise FunctionNotLoaded(f"{function.module} is not a Python file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        with _environment_of(function):
            specification.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise FunctionNotLoaded(f"{function.name} ({function.module}) does not load: {error!r}") from error
    handler: Handler | None = getattr(module, function.attribute, None)
    if not callable(handler):
        raise FunctionNotLoaded(f"{function.module} has no function {function.attribute}")
    return handler


@contextmanager
def _environment_of(function: Function) -> Iterator[None]:
    """The variables Lambda and the template give, as long as the module is loaded; the process's own win."""
    given = {
        "AWS_LAMBDA_FUNCTION_NAME": function.name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mb),
        **function.variables,
    }
    with _loading:
        added = {name: value for name, value in given.items() if name not in os.environ}
        os.environ.update(added)
        try:
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)


def payload_of(event: Event) -> bytes:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


def call_handler(function: Function, handler: Handler, payload: bytes, context: LambdaContext) -> bytes:
    """Parse, call, serialise, as Lambda's runtime does. Raises InvocationFailed."""
    try:
        response = handler(json.loads(payload), context)
        serialised = payload_of(response)
    except BaseException as error:  # a handler that exits is one more that failed
        raise InvocationFailed(f"{function.name} failed: {error!r}") from error
    if len(serialised) > _MAX_RESPONSE_BYTES:
        raise InvocationFailed(
            f"{function.name} returned {len(serialised)} bytes: at most {_MAX_RESPONSE_BYTES} are allowed"
        )
    return serialised


@contextmanager
def _event_loop() -> Iterator[None]:
    """Gives the thread an event loop, which does not run."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _load_beside_event_loop(function: Function) -> Handler:
    with _event_loop():
        return load_handler(function)


class Environments:
    """The environments of one function, made as they are needed: threads with an event loop each. Raises
    FunctionNotLoaded when it is made."""

    def __init__(self, function: Function) -> None:
        self.function = function
        # It is loaded as it will run: in a thread of its own, beside an event loop.
        with ThreadPoolExecutor(1) as executor:
            self._handler = executor.submit(_load_beside_event_loop, function).result()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._closed = False

    def invoke(self, payload: bytes) -> Future[bytes]:
        """The future fails with InvocationFailed.

        Whoever stops waiting for it cancels nothing: the function goes on until it has finished.
        """
        if not self._idle.acquire(blocking=False):
            name = f"environment of {self.function.name}"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        result: Future[bytes] = Future()
        result.set_running_or_notify_cancel()
        self._jobs.put((payload, make_context(self.function), result))
        return result

    def call(self, event: Event) -> Any:
        """What the function returns for an event. Raises InvocationFailed."""
        return json.loads(self.invoke(payload_of(event)).result())

    async def returned(self, payload: bytes, integration_seconds: float) -> Any:
        """The same, behind an API. Raises InvocationFailed, and TimeoutError if the API gives up before the
        function's own timeout."""
        function_seconds = self.function.timeout_seconds
        try:
            result = asyncio.wrap_future(self.invoke(payload))
            return json.loads(await asyncio.wait_for(result, min(function_seconds, integration_seconds)))
        except TimeoutError:
            if function_seconds < integration_seconds:
                raise InvocationFailed(f"{self.function.name} took more than {function_seconds} s") from None
            raise

    def close(self) -> None:
        """Environments that are idle end now, the others after what they are doing."""
        self._closed = True
        self._jobs.put(None)

    def _run(self) -> None:
        with _event_loop():
            while (job := self._jobs.get()) is not None:
                payload, context, result = job
                try:
                    response = call_handler(self.function, self._handler, payload, context)
                except InvocationFailed as error:
                    if not self._closed:  # Else it failed because the engines are gone.
                        report_failure(error)
                    self._idle.release()
                    result.set_exception(error)
                else:
                    self._idle.release()
                    result.set_result(response)
        self._jobs.put(None)  # For the next one.
