"""Runs upstream's suite of the durable proxy: `python -m tests.conformance.proxy SUITE`.

SUITE is `packages/proxy` of a clone of durable-streams/durable-streams: the suite is not on npm. It
authenticates by `?secret=…`, which this server does not take. So a relay in front turns the right secret into
a token with the right to the proxy, a wrong one into a wrong token, and changes nothing else.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx
import jwt
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse

from tests.conformance.servers import ROOT, running, temporary_directory, tidemark_server
from tests.ports import free_port

#: Of the suite, by its commit of 2026-11.
TESTS = 110
SUITE_SECRET = "test-secret-key-for-development"
#: One list for all its files: one of them refuses `evil.example.com/api`, another allows `sub.example.com`.
ALLOWED = (
    "http://localhost:*/**, https://api.openai.com/**, https://api.anthropic.com/**, "
    "https://*.example.com/api/v1/*"
)
AUTH_SECRET = "a-secret-of-the-suite-with-32-bytes-and-more"


def main(suite: Path) -> int:
    copy = ROOT / "node_modules" / ".proxy-suite"  # So that it finds the packages beside it.
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(suite / "src", copy / "src")
    via = os.environ.get("VIA") or "asgi"
    with temporary_directory() as directory:
        server = tidemark_server(via, directory, PROXY_ALLOW=ALLOWED, AUTH_SECRET=AUTH_SECRET)
        with running(server):
            url = start_relay(server.base_url)
            found = run_suite(url, copy, directory / "report.json")
        counts = {name: found[f"num{name.title()}Tests"] for name in ("passed", "failed", "pending")}
        for each in (test for file in found["testResults"] for test in file["assertionResults"]):
            if each["status"] == "failed":
                print(f"FAILED  {each['fullName']}\n{''.join(each['failureMessages'])[:600]}")
        print(f"{via}: {counts}", flush=True)
        if counts["failed"] or counts["passed"] != TESTS:
            print(server.log_tail())
            return 1
    return 0


def run_suite(url: str, copy: Path, result: Path) -> dict[str, Any]:
    config = Path(__file__).with_name("proxy.vitest.config.mjs")
    command = [str(ROOT / "node_modules" / ".bin" / "vitest"), "run", "--root", str(copy)]
    command += ["--config", str(config), "--reporter=json", f"--outputFile={result}"]
    environment = os.environ | {"PROXY_CONFORMANCE_URL": url}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    if not result.exists():
        raise SystemExit(f"vitest wrote no report:\n{run.stdout[-3000:]}{run.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def start_relay(base_url: str) -> str:
    port, client = free_port(), httpx.AsyncClient(base_url=base_url, timeout=None)

    def token(given: str) -> str:
        claims = {"exp": int(time.time()) + 3600, "scope": "proxy:*", "sub": "suite"}
        return jwt.encode(claims, AUTH_SECRET, "HS256") if given == SUITE_SECRET else given

    async def relay(request: Request) -> StreamingResponse:
        query = parse_qsl(request.url.query, keep_blank_values=True)
        secrets = [value for name, value in query if name == "secret"]
        headers = [
            pair for pair in request.headers.raw if pair[0] not in {b"content-length", b"transfer-encoding"}
        ]
        if secrets:
            headers = [pair for pair in headers if pair[0] != b"authorization"]
            headers.append((b"authorization", f"Bearer {token(secrets[0])}".encode()))
        kept = urlencode([each for each in query if each[0] != "secret"])
        path = f"{request.scope['raw_path'].decode()}?{kept}"
        sent = client.build_request(request.method, path, headers=headers, content=await request.body())
        answer = await client.send(sent, stream=True)

        async def body() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.aiter_raw():
                    yield chunk
            finally:
                await answer.aclose()

        response = StreamingResponse(body(), answer.status_code)
        response.raw_headers = [
            pair for pair in answer.headers.raw if pair[0].lower() != b"transfer-encoding"
        ]
        return response

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    app = Starlette(lifespan=lifespan)
    app.add_route("/{path:path}", relay, ["GET", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS", "PUT"])
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return f"http://localhost:{port}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
