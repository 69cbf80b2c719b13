"""Finds the errors in the texts of Spark and of Java.

Spark wraps what Python raised into messages of its own, which hold stack traces in two languages. In each of
these traces the line of the error stands where the indentation ends, as `package.Class: message`.

Java's exceptions come as `: package.Class: message`, with their causes below. The first line that says more
than that a job has failed counts.
"""

from __future__ import annotations

import re
from typing import Final

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
