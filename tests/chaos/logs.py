"""What the server's log must not hold: a traceback, other than one that says that storage is out of reach."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.chaos.recording import Violation

_BEGIN: Final = ("Traceback (most recent call last):", "Exception Group Traceback (most recent call last):")
_CHAINED: Final = ("The above exception was the direct cause", "During handling of the above exception")
#: A line of another process may come between a traceback and its exception, and before what caused it. And a
#: process that is killed leaves a traceback without one: a level or a word with a colon is none.
_EXCEPTION: Final = re.compile(r"([A-Za-z_]\w*\.)*([A-Z]\w*[a-z]\w*|(?<=\.)[a-z]\w*)(:|$)")
#: What stands before each line about a group of failures, and the line that begins the next one of them.
_BAR: Final = re.compile(r" *[|+] ")
_NEXT_OF_GROUP: Final = re.compile(r" *\+[-+]+ \d+ -+$")
#: Functions that nobody waits for, and waiting readers, report in this way that they could not reach storage.
OUT_OF_REACH: Final = (
    # Each failure that these count is named itself.
    "ExceptionGroup",
    "botocore.exceptions.ConnectTimeoutError",
    "botocore.exceptions.ConnectionClosedError",
    "botocore.exceptions.EndpointConnectionError",
    "botocore.exceptions.ReadTimeoutError",
    "tidemark.protocol.errors.Busy",
    "tidemark.protocol.errors.StorageUnavailable",
    "tidemark.protocol.errors.OutcomeUnknown",
    "tidemark.protocol.errors.StorageSilent",
    "tidemark.aws.retry.NoAnswer",
    "tidemark.wake.notifier.SocketUnavailable",
    "tidemark.aws.sqs.QueueUnavailable",
)


def tracebacks(log: str) -> Iterator[str]:
    """The last line of each: the exception and its message. Of a chain of them, that of the last."""
    inside, last = False, ""
    for line in log.splitlines():
        text = _BAR.sub("", line.rstrip(), count=1)
        if text.strip() in _BEGIN or _NEXT_OF_GROUP.match(text):
            if last:
                yield last
            inside, last = True, ""
        elif inside and _EXCEPTION.match(text):
            inside, last = False, text
        elif last and text.startswith(_CHAINED):
            last = ""
    if last:
        yield last


def says_out_of_reach(exception: str) -> bool:
    named = exception.partition(":")[0]
    reason = exception.partition(" failed: ")[2]
    return named in OUT_OF_REACH or reason.startswith(
        tuple(f"{each.rpartition('.')[2]}(" for each in OUT_OF_REACH)
    )


def server_log_violations(path: Path) -> list[Violation]:
    log = path.read_text(errors="replace") if path.exists() else ""
    found = Counter(line[:300] for line in tracebacks(log) if not says_out_of_reach(line))
    return [
        Violation("traceback in the server's log", f"{times} times", line) for line, times in found.items()
    ]
