"""The server: one process with the embedded engine, or in a container with AWS behind it.

`tidemark serve` runs it; no function imports it. It imports no `client`, `cli`, `spark` or `ops`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
