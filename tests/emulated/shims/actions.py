"""IAM has no action `sqs:SendMessageBatch`: `sqs:SendMessage` covers it. The emulator asks for the first."""

from __future__ import annotations

from typing import Any

from ministack.core import iam_actions

from tests.emulated.shims.names import replace

COVERED_BY = {
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
}


def install() -> None:
    extract = iam_actions.extract_iam_action

    def extract_covering(*arguments: Any, **named: Any) -> str | None:
        action = extract(*arguments, **named)
        return COVERED_BY.get(action, action) if action else action

    replace(iam_actions, "extract_iam_action", extract_covering)
