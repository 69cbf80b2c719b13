"""A Lambda environment of some release, as a process: `python one_environment.py <folder of the release>`.

Imports nothing of the tests, so that the release alone decides what runs. It takes a job in each line of JSON
on standard input and prints its answer as a line.
"""

import base64
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs


class Context:
    aws_request_id = function_name = "test"

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


def load(release: Path, name: str) -> Any:
    specification = importlib.util.spec_from_file_location(name, release / "functions" / name / "app.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.handler


class Environment:
    def __init__(self, release: Path) -> None:
        self._release = release
        self._event = json.loads((release / "events" / "get-catch-up.json").read_text())
        self._handlers = {"write": load(release, "write")}

    def create(self, path: str) -> int:
        status: int = self._send("PUT", path)["statusCode"]
        return status

    def write(
        self, path: str, producer: str | None, writer: int, sizes: list[int]
    ) -> list[tuple[str, int, int]]:
        """Appends a message of each size; returns the name, the size and the answer of each."""
        answers = []
        for number, size in enumerate(sizes):
            claim = {"producer-id": producer, "producer-epoch": "0", "producer-seq": str(number)}
            body = json.dumps({"name": f"{writer}-{number}", "rest": "x" * size})
            answer = self._send("POST", path, claim if producer else {}, body)
            answers.append((f"{writer}-{number}", size, answer["statusCode"]))
        return answers

    def read(self, path: str) -> tuple[int, list[tuple[str, int]]]:
        """The last answer, and the name and size of each message."""
        if "read" not in self._handlers:
            self._handlers["read"] = load(self._release, "read")
        messages: list[tuple[str, int]] = []
        offset = "-1"
        while True:
            answer = self._send("GET", path, query=f"offset={offset}")
            if answer["statusCode"] != 200:
                return answer["statusCode"], messages
            page = json.loads(base64.b64decode(answer["body"]))
            messages += [(message["name"], len(message["rest"])) for message in page]
            if "stream-up-to-date" in answer["headers"]:
                return 200, messages
            offset = answer["headers"]["stream-next-offset"]

    def _send(
        self, method: str, path: str, headers: Any = None, body: str = "", query: str = ""
    ) -> dict[str, Any]:
        event = json.loads(json.dumps(self._event))
        event |= {"rawPath": path, "rawQueryString": query, "isBase64Encoded": False, "body": body}
        event["queryStringParameters"] = {name: text for name, [text] in parse_qs(query).items()}
        event["headers"] |= {"content-type": "application/json", "content-length": str(len(body))}
        event["headers"] |= headers or {}
        event["requestContext"]["http"] |= {"method": method, "path": path}
        answer: dict[str, Any] = self._handlers["read" if method == "GET" else "write"](event, Context())
        return answer


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What the functions log is no answer.
    environment = Environment(Path(sys.argv[1]))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        job, arguments = json.loads(line)
        print(json.dumps(getattr(environment, job)(*arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
