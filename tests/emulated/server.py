"""The emulator's process: `python -m tests.emulated.server`. It applies the shims and serves until SIGTERM.

Environment: GATEWAY_PORT, STACK_PORTS (`port=stack,…`), DATA_DIR, SAM_PYTHON, and the emulator's own (AUTH).
"""

import asyncio
import os
from pathlib import Path

from hypercorn.asyncio import serve
from hypercorn.config import Config
from ministack import app
from ministack.core import lambda_runtime

from tests.emulated.shims import (
    actions,
    address,
    api_body,
    deployments,
    layer,
    preflight,
    sam_transform,
    sockets,
    strictness,
    transport,
)

LOOPBACK = "127.0.0.1"


def main() -> None:
    directory = Path(os.environ["DATA_DIR"])
    directory.mkdir(parents=True, exist_ok=True)
    sam_transform.install(Path(os.environ["SAM_PYTHON"]))
    api_body.install()
    deployments.install()
    preflight.install()
    layer.install(directory)
    sockets.install()
    actions.install()
    strictness.install()
    pairs = (each.split("=", 1) for each in os.environ["STACK_PORTS"].split(","))
    stacks = {int(port): stack for port, stack in pairs}
    config = Config()
    config.bind = [f"{LOOPBACK}:{port}" for port in (int(os.environ["GATEWAY_PORT"]), *stacks)]
    config.loglevel = "WARNING"
    config.keep_alive_timeout = 75
    config.graceful_timeout = 1
    emulator = transport.encrypted(app.app, int(os.environ["GATEWAY_PORT"]))
    asyncio.run(serve(address.addressed(emulator, stacks), config))
    # The functions' processes: they would end by themselves, but later than this one.
    lambda_runtime.reset()


if __name__ == "__main__":
    main()
