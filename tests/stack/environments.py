"""Lambda's execution environments, as threads: each serves one invocation at a time and is used again.

In Lambda an environment is a process. Here the environments of a function share one loaded module, so that
hundreds of waiting requests do not cost hundreds of processes; each has an event loop of its own, as Mangum
expects.
"""

import asyncio
import importlib.util
import itertools
import json
import os
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tests.stack.events import ACCOUNT_ID, Event
from tests.stack.template import Function
from tidemark.server.request_log import report_failure

MAX_REQUEST_BYTES: Final = 6 * 1024 * 1024
_MAX_RESPONSE_BYTES: Final = MAX_REQUEST_BYTES + 100
#: Of one function: Lambda's quota of an account that asked for no more.
MOST_ENVIRONMENTS: Final = 1000
#: An environment ends after this time without an invocation. Each has a thread and three descriptors.
IDLE_SECONDS: Final = 10.0

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
    """The environments of one function, made as they are needed, `most` at once: threads with an event loop
    each. Invocations beyond that wait. Raises FunctionNotLoaded when it is made."""

    def __init__(self, function: Function, most: int = MOST_ENVIRONMENTS) -> None:
        self.function = function
        # It is loaded as it will run: in a thread of its own, beside an event loop.
        with ThreadPoolExecutor(1) as executor:
            self._handler = executor.submit(_load_beside_event_loop, function).result()
        self._most = most
        self._made = self._idle = 0
        self._jobs: deque[_Job] = deque()
        #: Guards these three.
        self._changed = threading.Condition()
        self._closed = False

    def invoke(self, payload: bytes) -> Future[bytes]:
        """The future fails with InvocationFailed.

        Whoever stops waiting for it cancels nothing that has begun: the function goes on until it has
        finished.
        """
        result: Future[bytes] = Future()
        with self._changed:
            self._jobs.append((payload, make_context(self.function), result))
            self._changed.notify()
            if len(self._jobs) > self._idle and self._made < self._most:
                self._made += 1
                self._idle += 1
                name = f"environment of {self.function.name}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        return result

    def call(self, event: Event) -> Any:
        """What the function returns for an event. Raises InvocationFailed."""
        return json.loads(self.invoke(payload_of(event)).result())

    async def returned(self, payload: bytes, integration_seconds: float) -> Any:
        """The same, behind an API. Raises InvocationFailed, and TimeoutError if the API gives up before the
        function's own timeout."""
        function_seconds = self.function.timeout_seconds
        try:
            async with asyncio.timeout(min(function_seconds, integration_seconds)):
                returned: bytes = await asyncio.wrap_future(self.invoke(payload))
                return json.loads(returned)
        except TimeoutError:
            if function_seconds < integration_seconds:
                raise InvocationFailed(f"{self.function.name} took more than {function_seconds} s") from None
            raise

    def close(self) -> None:
        """Environments that are idle end now, the others after what they are doing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        with _event_loop():
            while (job := self._next()) is not None:
                self._do(*job)
                del job  # A payload may be large, and the next may be long in coming.

    def _next(self) -> _Job | None:
        """None where the environment is to end."""
        with self._changed:
            while self._changed.wait_for(lambda: self._jobs or self._closed, IDLE_SECONDS) and self._jobs:
                job = self._jobs.popleft()
                if job[2].set_running_or_notify_cancel():
                    self._idle -= 1
                    return job
            self._idle -= 1
            self._made -= 1
            return None

    def _do(self, payload: bytes, context: LambdaContext, result: Future[bytes]) -> None:
        settle: Callable[[], None]
        try:
            settle = partial(result.set_result, call_handler(self.function, self._handler, payload, context))
        except InvocationFailed as error:
            if not self._closed:  # Else it failed because the engines are gone.
                report_failure(error)
            settle = partial(result.set_exception, error)
        with self._changed:
            self._idle += 1  # Whoever waits for the result may invoke again at once.
        settle()
        del payload, result, settle  # Else they are in a cycle with the traceback of a failure.
