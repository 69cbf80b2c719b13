"""The one-line error message of a failed job, and its exit code.

Spark hands over what a worker raised as text: the errors of this package with their traces, one raised from
another. The last one is what the user needs to know.
"""

from __future__ import annotations

import re
import textwrap
from enum import IntEnum
from typing import Final

#: How every error of this package begins.
OURS: Final = "tidemark: "
#: Spark's words where the driver could not start a Python process in time.
SLOW_START: Final = "Python worker failed to connect back"

#: An error at the end of a trace of Python's, which a worker handed to Spark as text.
_RAISED_BY_PYTHON: Final = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(?P<name>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?"
)
#: What a Python process of Spark wrote before it ended, indented.
_WORKER: Final = re.compile(r"Error from python worker:\n((?:  .*\n|\n)+)")
#: The line of an error of Java, of each of its causes, and of a task's; one that says no more than that the
#: job has failed is none of them.
_RAISED_BY_JAVA: Final = re.compile(
    r"(?:^: |^Caused by: | executor \w+\): )(?P<name>[A-Za-z_][\w.$]*)"
    r"(?:: (?P<text>(?!Job aborted due|Exception thrown in|Writing job failed).+))?$",
    re.MULTILINE,
)
#: A streaming query's own error, which has the classes of Java in its stack trace alone.
_ENDED_BY: Final = "terminated with exception: "
#: An error of Spark as a whole, which may have several lines.
_SPARK: Final = re.compile(r"\[[A-Z][A-Z0-9_.]*\] .*?SQLSTATE: \w{5}", re.DOTALL)


def errors_in(fault: BaseException) -> list[tuple[str, str]]:
    """Class and line of what Python raised inside of Spark, in order; of any other error its own."""
    text = str(fault)
    if _ENDED_BY in text:
        text += f"\n{getattr(fault, '_stackTrace', '')}"
    worker = _WORKER.search(text)
    if worker is not None:
        text = textwrap.dedent(worker[1])
    traced = [
        (found["name"], f"{found['name']}: {found['text']}" if found["text"] else found["name"])
        for found in _RAISED_BY_PYTHON.finditer(text)
        # Python code that Spark had called, as that of `foreachBatch`, had called Spark: the cause is Java's.
        if not found["name"].endswith("Py4JJavaError")
    ]
    if traced:
        return traced
    if worker is not None:
        last = worker[1].rstrip().splitlines()[-1].strip()
        return [("PythonWorkerFailed", f"a Python process of Spark cannot start: {last}")]
    raised = list(_RAISED_BY_JAVA.finditer(text))
    for each in raised:
        if each["text"]:
            return [(each["name"], _one_line(text[each.start("text") :]))]
    if raised:
        return [(raised[0]["name"], raised[0]["name"])]
    name = type(fault).__name__
    return [(name, _one_line(text) or name)]


def _one_line(text: str) -> str:
    sparks_own = _SPARK.match(text)
    if sparks_own:
        return " ".join(sparks_own[0].split())
    return next(filter(None, map(str.strip, text.splitlines())), "")


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


#: An error of AWS as boto3 words it.
_AWS: Final = re.compile(r"An error occurred \((\w+)\) when calling")

#: Classes of errors: ours, and Python's and Java's own of paths and hosts that the user has given.
_CLASSES: Final = {
    Exit.YOUR_INPUT: "AnalysisException BadOffset BadRow ForeignBatch FormatTooNew InvalidOptions JobFailed"
    " MissingStream NoCatalog NoLakeTable NoTimes ReusedId StorageMissing"
    " FileNotFoundError FileNotFoundException IsADirectoryError NotADirectoryError"
    " SparkClassNotFoundException UnsupportedFileSystemException",
    Exit.YOUR_RIGHTS: "ForbiddenHttpFault NoCredentialsError StorageForbidden AccessControlException"
    " AccessDeniedException PermissionError",
    Exit.TRY_AGAIN: "RetryableHttpFault StorageOutOfReach StorageSlow ConnectException ConnectionError"
    # An end of file is that of a killed worker's socket: Spark tells which file it could not read.
    " EOFException SocketException SocketTimeoutException UnknownHostException",
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
#: Spark's words, where its class says nothing.
_BY_WORDS: Final = {
    SLOW_START: Exit.TRY_AGAIN,
    "Python worker exited unexpectedly": Exit.TRY_AGAIN,
    "Python daemon failed to launch worker": Exit.TRY_AGAIN,
    "while reading the port number from pyspark.daemon": Exit.TRY_AGAIN,
    "[CONCURRENT_STREAM_LOG_UPDATE]": Exit.TRY_AGAIN,
    "[FAILED_READ_FILE": Exit.YOUR_INPUT,
}
_BY_AWS_CODE: Final = {name: code for code, names in _AWS_CODES.items() for name in names.split()}


def explain_failure(fault: BaseException) -> tuple[str, Exit]:
    """The line that says what is wrong, and whose turn it is."""
    chain = [fault]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    told = [each for link in reversed(chain) for each in errors_in(link)]
    codes = [code for name, line in told if (code := _code_of(name, line)) is not None]
    ours = [line.partition(OURS)[2] for _, line in told if OURS in line]
    return (ours or [told[-1][1]])[-1], codes[-1] if codes else Exit.FAILED


def _code_of(name: str, line: str) -> Exit | None:
    for words, code in _BY_WORDS.items():
        if words in line:
            return code
    aws = _AWS.search(line)
    return _BY_AWS_CODE.get(aws[1]) if aws else _BY_CLASS.get(name.rpartition(".")[2])
