"""`make deploylocal`: `sam deploy` of the built template into an emulated AWS on this machine.

It prints the URLs and serves until Ctrl-C; nothing is kept. samconfig.toml says what is deployed, in its
environment `local`. Arguments are options of `sam deploy`.
"""

import signal
import sys
import threading
import time

from tests.conformance.servers import running, temporary_directory
from tests.emulated.deployment import DeploymentFailed, deploy_as_configured
from tests.emulated.emulator import Emulator

STACK = "tidemark-local"


def main(arguments: list[str]) -> int:
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
                stack = deploy_as_configured(emulator, STACK, "--config-env", "local", *arguments)
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
