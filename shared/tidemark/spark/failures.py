"""The one-line error message of a failed job, and its exit code.

Spark's own messages hold the errors of this package, one raised from another (`spark/failures.py`). The last
one is what the user needs to know.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeVar

#: How every error of this package begins.
OURS: Final = "tidemark: "
#: The class of an error that tells of a killed worker.
WORKER_DIED: Final = "WorkerDied"

#: Spark's words where a Python process was killed.
_WORKER_DIED: Final = re.compile(
    r"Python worker exited unexpectedly|Python daemon failed to launch worker"
    r"|EOFException occurred while reading the port number from pyspark\.daemon's stdout"
    r" and terminated with code: 137"
)
#: Java's, where the other end of a connection is not there any more; and what of Spark speaks to Python.
_CUT_OFF: Final = re.compile(r"Connection reset|Broken pipe|Stream closed|[\w.]*EOFException$")
_SPEAKS_TO_PYTHON: Final = re.compile(r"\bat org\.apache\.spark\.[\w.]*python\.")

_TRACE: Final = "Traceback (most recent call last):"
#: The line of an error in a trace.
_RAISED: Final = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
#: Py4J's words for an error of Java.
_JAVA: Final = "An error occurred while calling "
#: How a text of Java begins.
FROM_JAVA: Final = (_JAVA, "Job aborted due to stage failure")
#: The line of an error of Java, of each of its causes, and of a task's; one that says no more than that the
#: job has failed is none of them.
_RAISED_BY_JAVA: Final = re.compile(
    r"(?:^: |^Caused by: | executor \w+\): )(?P<name>[A-Za-z_][\w.$]*)"
    r"(?:: (?P<text>(?!Job aborted due|Exception thrown in|Writing job failed).+))?$",
    re.MULTILINE,
)
#: Spark's words for the error that ended a streaming query; and what follows if that error had no message.
_ENDED_BY: Final = "terminated with exception: "
_NO_MESSAGE: Final = " SQLSTATE"
#: An error of Spark as a whole, which may have several lines.
_SPARK: Final = re.compile(r"\[[A-Z][A-Z0-9_.]*\] .*?SQLSTATE: \w{5}", re.DOTALL)


def errors_in(fault: BaseException) -> list[tuple[str, str]]:
    """Class and message of what Python raised inside of Spark, in order; of any other error its own. Spark
    has a dozen ways to tell that a worker was killed: that has the class `WORKER_DIED`, and our words."""
    text = str(fault)
    if f"{_ENDED_BY}{_NO_MESSAGE}" in text:
        # PySpark has the error itself in Java's trace alone.
        text += getattr(fault, "_stackTrace", "")
    found = _raised_in_traces(text)
    if found and not found[-1][1].startswith(_JAVA):
        return found
    if found:
        # An exception of Java for Python code that Spark had called, as that of `foreachBatch`.
        text = text[text.rindex(_JAVA) :]
    name, said = _raised_by_java(text) or (type(fault).__name__, text)
    if died := _death_of_a_worker(name, said, text):
        what = f"a Python worker of Spark died ({died}), perhaps for want of memory: try again"
        return [(WORKER_DIED, f"{OURS}{what}")]
    if sparks_own := _SPARK.match(said):
        return [(name, " ".join(sparks_own[0].split()))]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return [(name, lines[0] if lines else "")]


def _raised_by_java(text: str) -> tuple[str, str] | None:
    """The first class and message that say more than that a job failed; else the first class without one."""
    ended = text.partition(_ENDED_BY)[2]
    if not (ended or text).startswith((*FROM_JAVA, _NO_MESSAGE)):
        return None
    raised = list(_RAISED_BY_JAVA.finditer(text))
    for each in raised:
        if each["text"]:
            return each["name"], text[each.start("text") :]
    return (raised[0]["name"], "") if raised else None


def _death_of_a_worker(name: str, said: str, text: str) -> str | None:
    """The words that tell of it. A connection that was cut may have led elsewhere: it led to Python where
    Spark's code for that is in the trace, or where a query ended without any trace."""
    ended = said.partition(_ENDED_BY)[2]
    reason = ended or said or name
    died = _WORKER_DIED.match(reason)
    if not died and (ended or _SPEAKS_TO_PYTHON.search(text)):
        died = _CUT_OFF.match(reason)
    return died and died[0]


def _raised_in_traces(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    in_trace = False
    for line in text.splitlines():
        if line.endswith(_TRACE):
            in_trace = True
        elif in_trace and (raised := _RAISED.match(line)):
            found.append((raised["name"], raised["text"] or ""))
            in_trace = False
    return found


T = TypeVar("T")


class Exit(IntEnum):
    """The exit codes of the jobs."""

    DONE = 0
    #: For a reason that is none of the others.
    FAILED = 1
    #: Arguments, options, rows, or names of what does not exist.
    YOUR_INPUT = 2
    #: Credentials or a token that do not allow it.
    YOUR_RIGHTS = 3
    #: No reply, or too many requests: the same command may succeed later.
    TRY_AGAIN = 4
    #: The job is done, and some of the data that it was to take is lost.
    DATA_LOST = 5


#: Spark's words where the driver could not start a Python process in time.
SLOW_START: Final = "Python worker failed to connect back"

#: An error of AWS as boto3 words it.
_AWS: Final = re.compile(r"An error occurred \((\w+)\) when calling")

#: Classes of errors: ours, and Python's and Java's own of paths and hosts that the user has given.
_CLASSES: Final = {
    Exit.YOUR_INPUT: "AnalysisException BadOffset BadRow ForeignBatch FormatTooNew InvalidOptions JobFailed"
    " MissingStream NoCatalog NoCheckpoint NoLakeTable NoTimes ReusedId StorageMissing FileNotFoundError"
    " FileNotFoundException IsADirectoryError NotADirectoryError SparkClassNotFoundException"
    " UnsupportedFileSystemException",
    Exit.YOUR_RIGHTS: "ForbiddenHttpFault NoCredentialsError StorageForbidden AccessControlException"
    " AccessDeniedException PermissionError",
    Exit.TRY_AGAIN: "RetryableHttpFault StorageOutOfReach StorageSlow ConnectException ConnectionError"
    f" SocketException SocketTimeoutException UnknownHostException {WORKER_DIED}",
    Exit.DATA_LOST: "DataLoss",
}
_BY_CLASS: Final = {name: code for code, names in _CLASSES.items() for name in names.split()}
#: Codes of AWS, as boto3 tells them.
_AWS_CODES: Final = {
    Exit.YOUR_INPUT: "NoSuchBucket NoSuchKey ResourceNotFoundException",
    Exit.YOUR_RIGHTS: "403 AccessDenied AccessDeniedException ExpiredToken InvalidAccessKeyId"
    " SignatureDoesNotMatch",
    Exit.TRY_AGAIN: "SlowDown",
}
_BY_AWS_CODE: Final = {name: code for code, names in _AWS_CODES.items() for name in names.split()}


def repeat_slow_start(run: Callable[[], T], seconds: float, tell: Callable[[str], None]) -> T:
    """Run a streaming query, and again where the driver's Python process was slow to start: Spark waits ten
    seconds for it, which is too short on a busy driver, and nothing was read then. Raises any other failure,
    and this one when the time is over."""
    from pyspark.errors import StreamingQueryException

    deadline = time.monotonic() + seconds
    while True:
        try:
            return run()
        except StreamingQueryException as fault:
            if SLOW_START not in str(fault) or time.monotonic() > deadline:
                raise
            tell("Spark's Python process took more than ten seconds to start: the query starts again")


def explain_failure(fault: BaseException) -> tuple[str, Exit]:
    """The line that says what is wrong, and whose turn it is."""
    chain = [fault]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    told = [line for each in reversed(chain) for line in errors_in(each)]
    codes = [code for name, text in told if (code := _code_of(name, text)) is not None]
    ours = [text for _, text in told if text.startswith(OURS)]
    line = ours[-1].removeprefix(OURS) if ours else _without_class(*told[-1], fault)
    return line, codes[-1] if codes else Exit.FAILED


def _code_of(name: str, text: str) -> Exit | None:
    if SLOW_START in text or "[CONCURRENT_STREAM_LOG_UPDATE]" in text:
        return Exit.TRY_AGAIN
    if text.startswith("[FAILED_READ_FILE"):
        return Exit.YOUR_INPUT
    aws = _AWS.search(text)
    return _BY_AWS_CODE.get(aws[1]) if aws else _BY_CLASS.get(name.rpartition(".")[2])


def _without_class(name: str, text: str, fault: BaseException) -> str:
    """The message alone of an error that reached us as it was raised, or that Java raised; with its class if
    Spark wrapped it."""
    if text and (name == type(fault).__name__ or str(fault).startswith(FROM_JAVA)):
        return text
    return f"{name}: {text}" if text else name
