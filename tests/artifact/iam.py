"""Which IAM actions a call needs. Where a call is not listed, the action has its name."""

from collections.abc import Iterable
from typing import Final

NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "s3:HeadObject": ("s3:GetObject",),
    "s3:GetRange": ("s3:GetObject",),
    "s3:CopyObject": ("s3:GetObject", "s3:PutObject"),
    "s3:DeleteObjects": ("s3:DeleteObject",),
    "s3:ListObjectsV2": ("s3:ListBucket",),
    "s3:CreateMultipartUpload": ("s3:PutObject",),
    "s3:UploadPart": ("s3:PutObject",),
    "s3:UploadPartCopy": ("s3:GetObject", "s3:PutObject"),
    "s3:CompleteMultipartUpload": ("s3:PutObject",),
    "lambda:Invoke": ("lambda:InvokeFunction",),
    "sqs:SendMessageBatch": ("sqs:SendMessage",),
}


def actions(calls: Iterable[str]) -> set[str]:
    return {action for call in calls for action in NEEDED.get(call, (call,))}
