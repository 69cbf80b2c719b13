"""How many functions and files of Tidemark a request passes: `python -m benchmarks.journeys [--list append]`.

Each journey goes through a function's own handler, with an event of API Gateway, to the local engines and
back; the process knows the stream's tail, as in a warm environment. `sys.setprofile` names what is called, on
any thread: a function counts once, however often it is called, and comprehensions do not count. A hop is a
call from one file into another, counted once for each two functions. `--list` prints a journey's functions in
the order of their first calls, each indented below its caller.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType

from benchmarks.cpu import ENVIRONMENT, ROOT, Context, event_of, load_handler
from tidemark.local.engines import LocalServices

PACKAGE = str(ROOT / "shared" / "tidemark") + os.sep
COMPREHENSIONS = {"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"}
#: By name: the function, and the event that is sent to it.
JOURNEYS = {
    "append": ("write", "post-append.json"),
    "read": ("read", "get-catch-up.json"),
    "head": ("read", "head.json"),
    "notify": ("notifier", "stream-records.json"),
}


class Watch:
    """The package's functions that run while it is on, in order, and how deep the first call of each is."""

    def __init__(self) -> None:
        self.found: dict[CodeType, int] | None = None
        self.hops: set[tuple[CodeType, CodeType]] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if self.found is None or event != "call" or not is_counted(code):
            return
        callers, caller = [], frame.f_back
        while caller is not None:
            callers += [caller.f_code] if is_counted(caller.f_code) else []
            caller = caller.f_back
        if callers and callers[0].co_filename != code.co_filename:
            self.hops.add((callers[0], code))
        self.found.setdefault(code, len(callers))

    def during(self, call: Callable[[], object]) -> dict[CodeType, int]:
        found: dict[CodeType, int] = {}
        self.found, self.hops = found, set()
        try:
            call()
        finally:
            self.found = None
        return found


def is_counted(code: CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE) and code.co_name not in COMPREHENSIONS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", choices=JOURNEYS, help="print the functions of one journey")
    listed = parser.parse_args().list
    watch = Watch()
    with LocalServices() as services:
        name = f"journeys-{uuid.uuid4()}"
        os.environ.update(ENVIRONMENT | services.environment | {"TABLE_NAME": name, "BUCKET_NAME": name})
        services.create_table(name)
        services.create_bucket(name)
        # The threads of the package's pools as well: they are made when they are first needed.
        threading.setprofile(watch)
        sys.setprofile(watch)
        handlers = {function: load_handler(function) for function, _ in JOURNEYS.values()}
        handlers["write"](event_of("put-create.json"), Context())
        for journey, (function, event_name) in JOURNEYS.items():
            call = partial(handlers[function], event_of(event_name), Context())
            for _ in range(3):
                response = call()
                if response and response.get("statusCode", 200) >= 300:
                    raise AssertionError(f"{journey}: {response}")
            found = watch.during(call)
            files = {code.co_filename for code in found}
            print(f"{journey}: {len(found)} functions, {len(files)} files, {len(watch.hops)} hops")
            if journey == listed:
                for code, depth in found.items():
                    place = Path(code.co_filename).relative_to(PACKAGE)
                    print(f"{'  ' * depth}{code.co_qualname}  ({place}:{code.co_firstlineno})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
