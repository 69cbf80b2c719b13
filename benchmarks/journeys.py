"""How many functions of Tidemark a request passes: `python -m benchmarks.journeys [--list append]`.

Each journey goes through a function's own handler, with an event of API Gateway, to the local engines and
back; the process knows the stream's tail, as in a warm environment. `sys.setprofile` names what is called: a
function counts once, however often it is called, and comprehensions do not count. `--list` prints a
journey's functions in the order of their first calls, each indented below its caller.
"""

from __future__ import annotations

import argparse
import os
import sys
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


def functions_called(call: Callable[[], object]) -> dict[CodeType, int]:
    """The package's functions that run meanwhile, in order, and how deep each first call is."""
    found: dict[CodeType, int] = {}

    def watch(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or code in found or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name in COMPREHENSIONS:
            return
        depth, caller = 0, frame.f_back
        while caller is not None:
            depth += caller.f_code.co_filename.startswith(PACKAGE)
            caller = caller.f_back
        found[code] = depth

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", choices=JOURNEYS, help="print the functions of one journey")
    listed = parser.parse_args().list
    with LocalServices(in_memory=True) as services:
        name = f"journeys-{uuid.uuid4()}"
        os.environ.update(ENVIRONMENT | services.environment | {"TABLE_NAME": name, "BUCKET_NAME": name})
        services.create_table(name)
        services.create_bucket(name)
        handlers = {function: load_handler(function) for function, _ in JOURNEYS.values()}
        handlers["write"](event_of("put-create.json"), Context())
        for journey, (function, event_name) in JOURNEYS.items():
            call = partial(handlers[function], event_of(event_name), Context())
            for _ in range(3):
                response = call()
                if response and response.get("statusCode", 200) >= 300:
                    raise AssertionError(f"{journey}: {response}")
            found = functions_called(call)
            print(f"{journey}: {len(found)} functions, {len({code.co_filename for code in found})} files")
            if journey == listed:
                for code, depth in found.items():
                    place = Path(code.co_filename).relative_to(PACKAGE)
                    print(f"{'  ' * depth}{code.co_qualname}  ({place}:{code.co_firstlineno})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
