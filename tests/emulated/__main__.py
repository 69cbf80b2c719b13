"""`make deploylocal`: the built template, deployed by the SAM CLI into an emulated AWS on this machine.

It prints the URLs and serves until Ctrl-C; nothing is kept. Arguments are the template's parameters,
`Name=value`.
"""

from __future__ import annotations

import signal
import sys
import threading
import time

from tests.conformance.servers import running, temporary_directory
from tests.emulated.deployment import BUILT, DeploymentFailed, deploy
from tests.emulated.emulator import Emulator

STACK = "tidemark-local"
DEFAULTS = {"AllowAnonymous": "true", "Edge": "false"}


def main(arguments: list[str]) -> int:
    if not BUILT.is_file():
        print("nothing is built: run `make build` first", file=sys.stderr)
        return 2
    if wrong := [each for each in arguments if "=" not in each]:
        print(
            f"{wrong[0]!r} is no parameter; write Name=value, for example LongPollSeconds=5", file=sys.stderr
        )
        return 2
    given = dict(each.split("=", 1) for each in arguments)
    parameters = {**DEFAULTS, **given}
    if {"AuthSecretName", "AuthJwksUrl"} & given.keys() and "AllowAnonymous" not in given:
        parameters["AllowAnonymous"] = "false"
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with temporary_directory() as directory:
        emulator = Emulator(directory, [STACK])
        with running(emulator.server):
            started = time.monotonic()
            print(
                "Deploying the built template into an emulated AWS; this takes a minute or two.", flush=True
            )
            try:
                stack = deploy(emulator, STACK, parameters)
            except DeploymentFailed as failure:
                print(failure, file=sys.stderr)
                return 1
            print(f"Deployed in {time.monotonic() - started:.0f} s.\n")
            print(f"  HTTP API       {stack.url}")
            print(f"  table, bucket  {stack.outputs['TableName']}, {stack.outputs['BucketName']}")
            print(
                f"  AWS            export AWS_ENDPOINT_URL={emulator.endpoint} "
                "AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_DEFAULT_REGION=us-east-1\n"
            )
            print(f"  curl -i -X PUT -H 'Content-Type: text/plain' {stack.url}/v1/stream/hello")
            print("Ctrl-C ends it; nothing is kept.", flush=True)
            while not stop.wait(1):
                if not emulator.is_running:
                    print(f"The emulator has ended:\n{emulator.server.log_tail()}", file=sys.stderr)
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
