"""Tracebacks in the log of a server are found, and told from those that say that storage is out of reach."""

from __future__ import annotations

import traceback

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
12:00:00
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in g
tidemark.aws.sqs.QueueUnavailable: Connection was closed
Traceback (most recent call last):
  File "b.py", line 2, in g
PUT is answered 503: NoAnswer: a line of another thread
ValueError
"""


def test_each_traceback_is_named_by_its_last_exception() -> None:
    assert list(tracebacks(LOG)) == [
        "KeyError: 'Items'",
        "tidemark.aws.sqs.QueueUnavailable: Connection was closed",
        "ValueError",
    ]


def test_storage_out_of_reach_is_no_fault_of_the_server() -> None:
    assert says_out_of_reach("tidemark.aws.sqs.QueueUnavailable: Connection was closed")
    failed = "tidemark.local.environments.InvocationFailed: JanitorFunction failed: "
    assert says_out_of_reach(f"{failed}OutcomeUnknown('Storage did not answer')")


def test_anything_else_is() -> None:
    assert not says_out_of_reach("KeyError: 'Items'")
    failed = "tidemark.local.environments.InvocationFailed: JanitorFunction failed: "
    assert not says_out_of_reach(f"{failed}KeyError('Items')")


def test_every_failure_of_a_group_is_named() -> None:
    """Task groups, which the web framework uses, report several failures at once, behind bars."""
    failures: list[Exception] = [TypeError("without a traceback")]
    try:
        raise KeyError("Items")
    except KeyError as failure:
        failures.append(failure)
    try:
        raise ExceptionGroup("several failures", failures)
    except ExceptionGroup as group:
        text = "".join(traceback.format_exception(group))
    assert list(tracebacks(text + "12:00:00 goes on\n")) == [
        "ExceptionGroup: several failures (2 sub-exceptions)",
        "TypeError: without a traceback",
        "KeyError: 'Items'",
    ]
    assert says_out_of_reach("ExceptionGroup: several failures (2 sub-exceptions)"), "each is named itself"


def test_a_traceback_that_a_kill_has_cut_off_is_not_taken_for_what_the_next_process_says() -> None:
    log = """\
Traceback (most recent call last):
  File "a.py", line 1, in f
    retu
Tidemark is ready at http://127.0.0.1:1
note: a word and a colon are no exception
ERROR: nor is a level
"""
    assert list(tracebacks(log)) == []


def test_exceptions_whose_names_are_small_are_found() -> None:
    for name in (
        "zlib.error: incorrect header check",
        "KeyboardInterrupt",
        "asyncio.exceptions.CancelledError",
    ):
        assert list(tracebacks(f"Traceback (most recent call last):\n  File\n{name}\n")) == [name]
