"""A router of the control surface, for its tests."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel

from tidemark.http.backend import backend_of
from tidemark.protocol.errors import StreamNotFound

router = APIRouter(prefix="/v1/stream/__example", tags=["example"])


class Lamp(BaseModel):
    watts: int


@router.get("/lamps/{name}")
async def read_lamp(request: Request, name: str) -> Lamp:
    if name == "absent":
        raise StreamNotFound
    return Lamp(watts=int(backend_of(request).settings.sse_seconds))


@router.put("/lamps/{name}", status_code=201)
async def put_lamp(lamp: Lamp) -> Lamp:
    return lamp
