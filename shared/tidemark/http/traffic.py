"""The busiest streams of this process, at `/v1/traffic`: like its metrics, on a local server alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidemark.observability.traffic import TRAFFIC
from tidemark.protocol.caching import NO_STORE

TRAFFIC_PATH: Final = "/v1/traffic"
_SHOWN: Final = 20


async def traffic(_: Request) -> Response:
    found = TRAFFIC.snapshot(_SHOWN)
    streams = [
        {"bucket_id": key.bucket, "stream_id": key.stream_id, **asdict(counted)}
        for key, counted in found.streams
    ]
    body = {"seconds": round(found.seconds, 3), "streams": streams, "left_out": found.left_out}
    return JSONResponse(body, headers={"Cache-Control": NO_STORE})
