"""What a failed job says in one line, and the exit code that goes with it.

Spark wraps what Python raised into messages of its own, which hold stack traces in two languages. In each of
these traces the line of the error stands where the indentation ends, as `package.Class: message`. The last
such line of this package's errors is what the user needs to know: the later one was raised from the earlier.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """The exit codes of the jobs."""

    DONE = 0
    #: For a reason that is none of the others.
    FAILED = 1
    #: Arguments, options, rows, or names of what does not exist.
    YOUR_INPUT = 2
    #: Credentials or a token that do not allow it.
    YOUR_RIGHTS = 3
    #: Nobody answered, or there were too many requests: the same command may succeed later.
    TRY_AGAIN = 4
    #: The job is done, and some of the data that it was to take is lost.
    DATA_LOST = 5


#: Spark's words where the driver could not start a Python process in time.
SLOW_START: Final = "Python worker failed to connect back"

_PREFIX: Final = "tidemark: "
_TRACE: Final = "Traceback (most recent call last):"
#: The line of an error in a trace.
_RAISED: Final = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
#: An error of AWS as boto3 words it.
_AWS: Final = re.compile(r"An error occurred \((\w+)\) when calling")

_BY_NAME: Final = {
    "AnalysisException": Exit.YOUR_INPUT,
    "BadOffset": Exit.YOUR_INPUT,
    "BadRow": Exit.YOUR_INPUT,
    "ForeignBatch": Exit.YOUR_INPUT,
    "InvalidOptions": Exit.YOUR_INPUT,
    "JobFailed": Exit.YOUR_INPUT,
    "MissingStream": Exit.YOUR_INPUT,
    "NoCheckpoint": Exit.YOUR_INPUT,
    "NoLakeTable": Exit.YOUR_INPUT,
    "ReusedId": Exit.YOUR_INPUT,
    "StorageMissing": Exit.YOUR_INPUT,
    "ForbiddenHttpFault": Exit.YOUR_RIGHTS,
    "NoCredentialsError": Exit.YOUR_RIGHTS,
    "StorageForbidden": Exit.YOUR_RIGHTS,
    "DataLoss": Exit.DATA_LOST,
    "RetryableHttpFault": Exit.TRY_AGAIN,
    "StorageOutOfReach": Exit.TRY_AGAIN,
    "StorageSlow": Exit.TRY_AGAIN,
}
_BY_AWS_CODE: Final = {
    "NoSuchBucket": Exit.YOUR_INPUT,
    "NoSuchKey": Exit.YOUR_INPUT,
    "ResourceNotFoundException": Exit.YOUR_INPUT,
    "403": Exit.YOUR_RIGHTS,
    "AccessDenied": Exit.YOUR_RIGHTS,
    "AccessDeniedException": Exit.YOUR_RIGHTS,
    "ExpiredToken": Exit.YOUR_RIGHTS,
    "InvalidAccessKeyId": Exit.YOUR_RIGHTS,
    "SignatureDoesNotMatch": Exit.YOUR_RIGHTS,
    "SlowDown": Exit.TRY_AGAIN,
}


def explain_failure(fault: BaseException) -> tuple[str, Exit]:
    """The line that says what is wrong, and whose turn it is."""
    chain = [fault]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    told = [line for each in reversed(chain) for line in _lines_of(each)]
    codes = [code for name, text in told if (code := _code_of(name, text)) is not None]
    ours = [text for _, text in told if text.startswith(_PREFIX)]
    line = ours[-1].removeprefix(_PREFIX) if ours else _without_class(*told[-1], fault)
    return line, codes[-1] if codes else Exit.FAILED


def _lines_of(fault: BaseException) -> list[tuple[str, str]]:
    """Class and message of what Python raised inside of Spark, in order; of any other error its own."""
    found, in_trace = [], False
    for line in str(fault).splitlines():
        if line.endswith(_TRACE):
            in_trace = True
        elif in_trace and (raised := _RAISED.match(line)):
            found.append((raised["name"], raised["text"] or ""))
            in_trace = False
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    return found or [(type(fault).__name__, lines[0] if lines else "")]


def _code_of(name: str, text: str) -> Exit | None:
    if SLOW_START in text:
        return Exit.TRY_AGAIN
    aws = _AWS.search(text)
    return _BY_AWS_CODE.get(aws[1]) if aws else _BY_NAME.get(name.rpartition(".")[2])


def _without_class(name: str, text: str, fault: BaseException) -> str:
    """The message alone of an error that reached us as it was raised; with its class if Spark wrapped it."""
    if text and name == type(fault).__name__:
        return text
    return f"{name}: {text}" if text else name
