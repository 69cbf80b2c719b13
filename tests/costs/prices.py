"""Prices, us-east-1, in dollars per million unless named otherwise. Look them up before you rely on them."""

from __future__ import annotations

from typing import Final

WRITE_UNIT: Final = 0.625
READ_UNIT: Final = 0.125
S3_WRITE: Final = 5.00
S3_READ: Final = 0.40
SQS_CALL: Final = 0.40
HTTP_API: Final = 1.00
LAMBDA_REQUEST: Final = 0.20
#: Per GB-second, arm64.
LAMBDA_GB_SECOND: Final = 13.3334e-6
EDGE_REQUEST: Final = 1.00
EDGE_FUNCTION: Final = 0.10

#: The template's default, in GB.
MEMORY_GB: Final = 0.5
#: What a request keeps an environment busy for: one call to storage and Python around it.
REQUEST_SECONDS: Final = 0.008
NOTIFIER_SECONDS: Final = 0.005
