"""CPU and import time of the functions, beside the least that boto3 can do: `python -m benchmarks.cpu`.

The warm append goes through the `write` function's own handler with an API Gateway event; the bare put is one
`put_item` of the very same item under the same condition. Both meet the same stand-in for DynamoDB, which
answers at once, so what is left is the CPU of either side.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from benchmarks.instant_table import InstantTable

ROOT = Path(__file__).resolve().parents[1]
HANDLERS = ("write", "read", "janitor")
TARGET = 1.5
ROUNDS = 7
CALLS = 400
IMPORT_ROUNDS = 9
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "ALLOW_ANONYMOUS": "true",
    "POWERTOOLS_METRICS_DISABLED": "true",
}

Handler = Callable[[dict[str, Any], object], dict[str, Any]]


class Context:
    """What Lambda gives a handler beside the event."""

    function_name = "write"
    aws_request_id = "00000000-0000-0000-0000-000000000000"
    memory_limit_in_mb = 1024
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:write"

    @staticmethod
    def get_remaining_time_in_millis() -> int:
        return 30_000


def main() -> int:
    os.environ.update(ENVIRONMENT)
    print(f"best of {ROUNDS} rounds of {CALLS} calls; best of {IMPORT_ROUNDS} fresh interpreters\n")
    print("| | this | boto3 alone | ratio | to reach |\n| --- | ---: | ---: | ---: | ---: |")
    print_append()
    print_imports()
    return 0


def print_append() -> None:
    table = InstantTable()
    with table.installed():
        append = warm_append(table)
        bare = bare_put(table, boto3.client("dynamodb"))
        frugal = bare_put(table, boto3.client("dynamodb", config=Config(parameter_validation=False)))
        ours, alone, without_validation = best_cpu(append, bare, frugal)
    print_line("CPU of a warm append, µs", ours, alone)
    print_line("the same, beside boto3 without its validation, µs", ours, without_validation, target=None)


def warm_append(table: InstantTable) -> Callable[[], None]:
    """An append to a stream whose tail the process knows; not being one storage call is an error."""
    handler, context = load_handler("write"), Context()
    send(handler, context, event_of("put-create.json"), {200, 201})
    event = event_of("post-append.json")
    for _ in range(3):
        send(handler, context, event, {200, 204})
    before = sum(table.calls.values())
    table.instant = True
    send(handler, context, event, {200, 204})
    made = sum(table.calls.values()) - before
    assert made == 1, f"a warm append made {made} storage calls"
    return lambda: send(handler, context, event, {200, 204})


def bare_put(table: InstantTable, client: Any) -> Callable[[], None]:
    """One conditional put of what the append has put last."""
    arguments = dict(table.last_put)
    assert "ConditionExpression" in arguments, "an append is a conditional put"
    return lambda: client.put_item(**arguments)


def load_handler(name: str) -> Handler:
    path = ROOT / "functions" / name / "app.py"
    spec = importlib.util.spec_from_file_location(f"{name}_app", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    handler: Handler = module.handler
    return handler


def event_of(name: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((ROOT / "events" / name).read_text())
    return event


def send(handler: Handler, context: Context, event: dict[str, Any], statuses: set[int]) -> None:
    answer = handler(event, context)
    if answer["statusCode"] not in statuses:
        raise AssertionError(f"{event['routeKey']}: {answer}")


def best_cpu(*calls: Callable[[], None]) -> list[float]:
    """Microseconds of CPU a call, best round of each, in turn, so that none has the quiet minute."""
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for index, call in enumerate(calls):
            best[index] = min(best[index], cpu_microseconds(call))
    return best


def cpu_microseconds(call: Callable[[], None]) -> float:
    start = time.process_time_ns()
    for _ in range(CALLS):
        call()
    return (time.process_time_ns() - start) / CALLS / 1000


def print_imports() -> None:
    alone = best_import("import boto3; boto3.client('dynamodb')")
    for name in HANDLERS:
        directory = ROOT / "functions" / name
        code = f"import sys; sys.path.insert(0, {str(directory)!r}); import app"
        print_line(f"import of `{name}`, ms", best_import(code), alone)


def best_import(code: str) -> float:
    """Milliseconds inside a fresh interpreter, its own start not counted."""
    timed = f"import time; start = time.perf_counter(); {code}; print(time.perf_counter() - start)"
    return min(1000 * run_fresh(timed) for _ in range(IMPORT_ROUNDS))


def run_fresh(code: str) -> float:
    command = [sys.executable, "-c", code]
    return float(
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    )


def print_line(label: str, ours: float, alone: float, target: float | None = TARGET) -> None:
    ratio = ours / alone
    verdict = "" if target is None else f"{target} ✓" if ratio <= target else f"**{target} ✗**"
    print(f"| {label} | {ours:.0f} | {alone:.0f} | {ratio:.2f} | {verdict} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
