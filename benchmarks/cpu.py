"""CPU and import time of the functions, beside the least that boto3 can do: `python -m benchmarks.cpu`.

The warm append goes through the `write` function's own handler with an API Gateway event; the bare put is one
`put_item` of the very same item under the same condition. Both meet the same stand-in for DynamoDB, which
answers at once, so what is left is the CPU of either side.

Imports are those of the built layer (`make build`) with bytecode, in an interpreter that sees nothing else.
They are counted in CPU as well, which other work on the machine moves less than time. A cold start does
not end with the import: the last row goes on to the first answer.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from benchmarks.instant_table import InstantTable
from benchmarks.layer import BUILD, FUNCTIONS, LAYER, RunnableLayer, layer_sizes, make_runnable

ROOT = Path(__file__).resolve().parents[1]
#: CPU of a warm append, beside a bare put.
APPEND_TARGET = 0.4
IMPORT_TARGET = 1.0
ROUNDS = 7
CALLS = 400
IMPORT_ROUNDS = 11
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
    if not LAYER.is_dir():
        print("\nThe imports are those of the built layer: run `make build` first.")
        return 1
    with tempfile.TemporaryDirectory() as directory:
        print_cold_starts(make_runnable(Path(directory)))
    unpacked, packed = layer_sizes()
    print(f"\nThe layer, without bytecode: {unpacked / 1e6:.1f} MB, {packed / 1e6:.1f} MB as a zip.")
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


def load_handler(name: str, attribute: str = "handler") -> Any:
    """From a fresh module each time, as a new environment has. Its settings come from the environment
    variables."""
    path = ROOT / "functions" / name / "app.py"
    spec = importlib.util.spec_from_file_location(f"{name}_app", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, attribute)


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


def cpu_microseconds(call: Callable[[], None], calls: int = CALLS) -> float:
    start = time.process_time_ns()
    for _ in range(calls):
        call()
    return (time.process_time_ns() - start) / calls / 1000


def print_cold_starts(layer: RunnableLayer) -> None:
    alone = best_start(layer, "import boto3; boto3.client('dynamodb')")
    for name, logical_name in FUNCTIONS.items():
        label = f"import of `{name}`, ms of CPU"
        print_line(label, best_start(layer, "import app", BUILD / logical_name), alone, IMPORT_TARGET)
    with empty_answers() as endpoint:
        os.environ["AWS_ENDPOINT_URL"] = endpoint
        put = "import boto3; boto3.client('dynamodb').put_item(TableName='t', Item={'pk': {'S': 'a'}})"
        ours = best_start(layer, FIRST_CREATE, BUILD / FUNCTIONS["write"])
        print_line("from nothing to the first stream, ms of CPU", ours, best_start(layer, put), IMPORT_TARGET)
        del os.environ["AWS_ENDPOINT_URL"]


FIRST_CREATE = f"""
import app, json
answer = app.handler(json.loads(open({str(ROOT / "events" / "put-create.json")!r}).read()), None)
assert answer["statusCode"] == 201, answer
"""


@contextmanager
def empty_answers() -> Iterator[str]:
    """The address of a server that answers every request with `{}`, as DynamoDB does where nothing is."""

    class Nothing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def best_start(layer: RunnableLayer, code: str, *first: Path) -> float:
    """Milliseconds of CPU in a fresh interpreter, its own start not counted."""
    timed = f"import time; start = time.process_time()\n{code}\nprint(time.process_time() - start)"
    command = layer.command(timed, *first)
    return min(1000 * run_fresh(command) for _ in range(IMPORT_ROUNDS))


def run_fresh(command: list[str]) -> float:
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return float(ran.stdout.splitlines()[-1])


def print_line(label: str, ours: float, alone: float, target: float | None = APPEND_TARGET) -> None:
    ratio = ours / alone
    verdict = "" if target is None else f"{target} ✓" if ratio <= target else f"**{target} ✗**"
    print(f"| {label} | {ours:.0f} | {alone:.0f} | {ratio:.2f} | {verdict} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
