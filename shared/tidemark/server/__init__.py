"""The server: one process with the embedded engine, or a container that stores its data on AWS.

`tidemark serve` runs it. No Lambda function imports this package, and this package does not import `client`,
`cli`, `spark` or `ops`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
