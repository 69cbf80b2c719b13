"""A check that needs no search: no read holds an append twice, and none misses what was acknowledged before.

It says less than the checker does, and shares nothing with it but the history.
"""

from collections import Counter

from tests.histories.history import Append, Create, Delete, History, Operation, Read


def check_exactly_once(history: History) -> list[str]:
    """What is wrong, in words. Bodies end with a semicolon and are alike only where one append is
    repeated."""
    problems = []
    asked = [operation.request for operation in history]
    created = [each.creates if isinstance(each, Append) else each for each in asked]
    mortal = {each.name for each in asked if isinstance(each, Delete)}
    mortal |= {
        each.name for each in created if isinstance(each, Create) and (each.ttl_seconds or each.source)
    }
    for read in history:
        if isinstance(read.request, Read) and read.answer is not None and read.answer.data is not None:
            found = Counter(read.answer.data.split(b";")[:-1])
            twice = [body for body, times in found.items() if times > 1]
            if twice:
                problems.append(f"Read twice: {twice} in {read}")
            if read.request.offset == 0 and read.request.name not in mortal:
                problems += _missing(history, read, found)
    return problems


def _missing(history: History, read: Operation, found: Counter[bytes]) -> list[str]:
    """Appends that were acknowledged before the read began."""
    lost = [
        operation
        for operation in history
        if isinstance(operation.request, Append)
        and operation.request.name == read.request.name  # type: ignore[union-attr] # a read names its stream
        and operation.answer is not None
        and operation.answer.outcome == "appended"
        and operation.returned is not None
        and operation.returned < read.called
        and operation.request.body
        and operation.request.body[:-1] not in found
    ]
    return [f"Acknowledged and not read by {read}: {operation}" for operation in lost]
