"""Tracebacks in the log of a server are found, and told from those that say that storage is out of reach."""

from __future__ import annotations

import traceback

import pytest

from tests.chaos.logs import says_out_of_reach, tracebacks

LOG = """\
Tidemark is ready at http://127.0.0.1:1
Traceback (most recent call last):
  File "a.py", line 1, in f
    g()
KeyError: 'Items'
POST is answered 503: NoAnswer: the connection was closed
Traceback (most recent call last):
  File "a.py", line 1, in f
urllib3.exceptions.ProtocolError: aborted
POST is answered 503: a line between the two
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in g
tidemark.aws.sqs.QueueUnavailable: Connection was closed
Traceback (most recent call last):
  File "b.py", line 2, in g
PUT is answered 503: NoAnswer: a line of another thread
zlib.error: incorrect header check
Traceback (most recent call last):
  File "a process that is killed.py", line 1, in f
    retu
Tidemark is ready at http://127.0.0.1:1
note: a word and a colon are no exception
ERROR: nor is a level
"""


def test_each_traceback_is_named_by_its_last_exception() -> None:
    assert list(tracebacks(LOG)) == [
        "KeyError: 'Items'",
        "tidemark.aws.sqs.QueueUnavailable: Connection was closed",
        "zlib.error: incorrect header check",
    ]


def test_every_failure_of_a_group_is_named() -> None:
    """Task groups, which the web framework uses, report several failures at once, behind bars."""
    group = ExceptionGroup("several failures", [TypeError("without a traceback"), KeyError("Items")])
    with pytest.raises(ExceptionGroup) as raised:
        raise group
    text = "".join(traceback.format_exception(raised.value))
    assert list(tracebacks(text + "12:00:00 goes on\n")) == [
        "ExceptionGroup: several failures (2 sub-exceptions)",
        "TypeError: without a traceback",
        "KeyError: 'Items'",
    ]


FAILED = "tidemark.local.environments.InvocationFailed: JanitorFunction failed: "


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tidemark.aws.sqs.QueueUnavailable: Connection was closed", True),
        (f"{FAILED}OutcomeUnknown('Storage did not answer')", True),
        ("ExceptionGroup: several failures (2 sub-exceptions)", True),
        ("KeyError: 'Items'", False),
        (f"{FAILED}KeyError('Items')", False),
    ],
)
def test_storage_out_of_reach_is_no_fault_of_the_server(line: str, expected: bool) -> None:
    assert says_out_of_reach(line) is expected
