"""What this machine has of what Tidemark needs, and whether a server is well."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemark.ops.client import RemoteServer, RequestFailed

_ENGINE: Final = Path("node_modules/@dynoxide/linux-x64")
#: Where make installs programs of its own.
_INSTALLED_BY_MAKE: Final = Path(".venv-sam/bin")


@dataclass(frozen=True, slots=True)
class Finding:
    """`remedy` says what to do where something is missing. Only some work needs what is not `needed`."""

    what: str
    is_well: bool
    found: str
    remedy: str = ""
    needed: bool = True


def examine_machine() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("Python 3.11 or newer", sys.version_info >= (3, 11), version, "install a newer Python")
    for module, what in (("greenlet", "the local stack"), ("ministack", "the local S3 and SQS")):
        found = importlib.util.find_spec(module) is not None
        yield Finding(what, found, "installed" if found else "missing", "make run installs it")
    engine = _ENGINE.exists()
    yield Finding(
        "the durable engine",
        engine,
        "installed" if engine else "missing here",
        "make run installs it where npm is; without it the fallback forgets everything on exit",
        needed=False,
    )
    programs = {
        "node": "the conformance suite and the durable engine",
        "sam": "make build and make deploy (make installs it)",
        "chromium": "the tests of the console",
        "java": "the Spark pipeline",
    }
    for program, purpose in programs.items():
        place = shutil.which(program) or shutil.which(program, path=str(_INSTALLED_BY_MAKE))
        yield Finding(program, place is not None, place or "missing", f"needed by {purpose}", needed=False)


def examine_server(server: RemoteServer) -> Iterator[Finding]:
    try:
        health = server.get("/v1/health")
    except RequestFailed as failed:
        yield Finding(
            server.url, is_well=False, found=str(failed), remedy="make run starts one, or give --url"
        )
        return
    commit = f", commit {health['commit']}" if health.get("commit") else ""
    yield Finding(server.url, health["status"] == "ok", f"version {health['version']}{commit}")
    try:
        me = server.get("/v1/me")
        server.get("/v1/streams", limit="1")
    except RequestFailed as failed:
        yield Finding(
            "listing streams", is_well=False, found=str(failed), remedy="give a token: --token or TOKEN"
        )
        return
    yield Finding("listing streams", is_well=True, found="scopes " + (", ".join(me["scopes"]) or "none"))
