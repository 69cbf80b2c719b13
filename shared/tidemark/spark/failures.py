"""The one-line error message of a failed job, and its exit code.

Spark reports a worker's exceptions as one text with all tracebacks. The last exception is the message for the
user.
"""

from __future__ import annotations

import re
import textwrap
from enum import IntEnum
from typing import Final

#: Prefix of every error text of this package.
OURS: Final = "tidemark: "
#: Spark's message if the driver could not start a Python process in time.
SLOW_START: Final = "Python worker failed to connect back"

#: The last line of a Python traceback in Spark's text.
_RAISED_BY_PYTHON: Final = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(?P<name>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?"
)
#: The indented output of a Python process of Spark that ended.
_WORKER: Final = re.compile(r"Error from python worker:\n((?:  .*\n|\n)+)")
#: The line of a Java exception, of each of its causes, and of a task's exception, except messages that only
#: report a failed job.
_RAISED_BY_JAVA: Final = re.compile(
    r"(?:^: |^Caused by: | executor \w+\): )(?P<name>[A-Za-z_][\w.$]*)"
    r"(?:: (?P<text>(?!Job aborted due|Exception thrown in|Writing job failed).+))?$",
    re.MULTILINE,
)
#: Part of a streaming query's error, whose Java classes are in its stack trace only.
_ENDED_BY: Final = "terminated with exception: "
#: A complete error of Spark, which may have several lines.
_SPARK: Final = re.compile(r"\[[A-Z][A-Z0-9_.]*\] .*?SQLSTATE: \w{5}", re.DOTALL)


def errors_in(fault: BaseException) -> list[tuple[str, str]]:
    """Return class and line of each Python exception in Spark's text, in order; else of the Java exception,
    or of `fault` itself."""
    text = str(fault)
    if _ENDED_BY in text:
        text += f"\n{getattr(fault, '_stackTrace', '')}"
    worker = _WORKER.search(text)
    if worker is not None:
        text = textwrap.dedent(worker[1])
    traced = [
        (found["name"], f"{found['name']}: {found['text']}" if found["text"] else found["name"])
        for found in _RAISED_BY_PYTHON.finditer(text)
        # Code in `foreachBatch` calls Spark again: the cause of a Py4JJavaError is the Java exception.
        if not found["name"].endswith("Py4JJavaError")
    ]
    if traced:
        return traced
    if worker is not None:
        last = worker[1].rstrip().splitlines()[-1].strip()
        return [("PythonWorkerFailed", f"a Python process of Spark cannot start: {last}")]
    # The first exception with a text, else the first.
    raised = sorted(_RAISED_BY_JAVA.finditer(text), key=lambda each: not each["text"])
    if raised:
        name, begin = raised[0]["name"], raised[0].start("text")
        return [(name, name if begin < 0 else _one_line(text[begin:]))]
    name = type(fault).__name__
    return [(name, _one_line(text) or name)]


def _one_line(text: str) -> str:
    sparks_own = _SPARK.match(text)
    if sparks_own:
        return " ".join(sparks_own[0].split())
    return next(filter(None, map(str.strip, text.splitlines())), "")


class Exit(IntEnum):
    DONE = 0
    #: Any other failure.
    FAILED = 1
    #: Invalid arguments, options or rows, or a name that does not exist.
    YOUR_INPUT = 2
    #: Credentials or a token that do not allow the call.
    YOUR_RIGHTS = 3
    #: No reply, or too many requests: the same command may succeed later.
    TRY_AGAIN = 4
    #: The job is done, but some data was lost before the job could read it.
    DATA_LOST = 5


#: An AWS error in boto3's form.
_AWS: Final = re.compile(r"An error occurred \((\w+)\) when calling")

#: Exit codes of exception classes (ours, and those of Python and Java for a user's paths and hosts), and of
#: AWS error codes in boto3's form.
_CODES: Final = {
    Exit.YOUR_INPUT: "AnalysisException BadOffset BadRow ForeignBatch FormatTooNew InvalidOptions JobFailed"
    " MissingStream NoCatalog NoLakeTable NoTimes ReusedId StorageMissing"
    " FileNotFoundError FileNotFoundException IsADirectoryError NotADirectoryError"
    " SparkClassNotFoundException UnsupportedFileSystemException"
    " NoSuchBucket NoSuchKey ResourceNotFoundException",
    Exit.YOUR_RIGHTS: "ForbiddenHttpFault NoCredentialsError StorageForbidden AccessControlException"
    " AccessDeniedException PermissionError 403 AccessDenied ExpiredToken InvalidAccessKeyId"
    " SignatureDoesNotMatch",
    Exit.TRY_AGAIN: "PlacesDoNotFit ProtocolError ReadTimeoutError RetryableHttpFault StorageOutOfReach"
    " StorageSlow ConnectException ConnectionError"
    # EOFException comes from a killed worker's socket; a file that cannot be read has its own Spark error.
    " EOFException SocketException SocketTimeoutException UnknownHostException SlowDown",
    Exit.DATA_LOST: "DataLoss",
}
_BY_NAME: Final = {name: code for code, names in _CODES.items() for name in names.split()}
#: Exit codes of Spark's messages whose class is too general.
_BY_WORDS: Final = {
    SLOW_START: Exit.TRY_AGAIN,
    "Python worker exited unexpectedly": Exit.TRY_AGAIN,
    "Python daemon failed to launch worker": Exit.TRY_AGAIN,
    "while reading the port number from pyspark.daemon": Exit.TRY_AGAIN,
    "[CONCURRENT_STREAM_LOG_UPDATE]": Exit.TRY_AGAIN,
    "[FAILED_READ_FILE": Exit.YOUR_INPUT,
}


def explain_failure(fault: BaseException) -> tuple[str, Exit]:
    """Return the line for the user, and the exit code."""
    chain = [fault]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    errors = [each for link in reversed(chain) for each in errors_in(link)]
    codes = [code for name, line in errors if (code := _code_of(name, line)) is not None]
    ours = [line.partition(OURS)[2] for _, line in errors if OURS in line]
    return (ours or [errors[-1][1]])[-1], codes[-1] if codes else Exit.FAILED


def _code_of(name: str, line: str) -> Exit | None:
    for words, code in _BY_WORDS.items():
        if words in line:
            return code
    aws = _AWS.search(line)
    return _BY_NAME.get(aws[1] if aws else name.rpartition(".")[2])
