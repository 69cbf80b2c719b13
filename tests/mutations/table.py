"""Bugs, and the tests that are to catch each. A row is for a test of orders, late writes or properties: such
a test could come to check nothing, and nobody would see it. Other rules have a test that asserts them.

    the bug
        module:function caught by tests, of the lowest layer that knows the rule, in seconds
        a piece of the function => what stands in its place

The piece is written as `ast.unparse` prints the function, and occurs there once: moves within the module,
formatting and comments change nothing. A class or a constant can stand for the function. Modules are named
below `tidemark`, or from `functions` or `tests` on; tests below `tests/`. A line that is indented further
goes on.
"""

import ast
import re
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Bug(NamedTuple):
    name: str
    #: From the top of the tree.
    path: str
    #: Qualified by its classes and functions.
    function: str
    edits: list[tuple[str, str]]
    #: Node ids.
    tests: list[str]

    def plant(self, source: str) -> str:
        """The module with the bug. Raises LookupError where the code has no such piece, or several."""
        node: ast.AST = ast.parse(source)
        for name in self.function.split("."):
            found = [each for each in ast.walk(node) if _name(each) == name]
            if not found:
                raise LookupError(f"{self.name}: {self.path} has no {self.function}")
            node = found[0]
        assert isinstance(node, ast.stmt)
        text = self._edited(ast.unparse(node))
        lines = source.splitlines()
        first = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
        lines[first - 1 : node.end_lineno] = [textwrap.indent(text, " " * node.col_offset)]
        return "\n".join((*lines, ""))

    def _edited(self, text: str) -> str:
        for before, after in self.edits:
            if text.count(before) != 1:
                raise LookupError(f"{self.name}: {before} occurs {text.count(before)} times in\n{text}")
            text = text.replace(before, after)
        return text


def _name(node: ast.AST) -> str:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return ""


def _bug(block: str) -> Bug:
    name, place, *edits = re.sub(r"\n {8,}", " ", block).splitlines()
    module, function, tests = re.split(":| caught by ", place.strip(), maxsplit=2)
    path = module.replace(".", "/") + ".py"
    return Bug(
        name,
        path if path.startswith(("functions/", "tests/")) else f"shared/tidemark/{path}",
        function,
        [(before, after) for before, _, after in (each.strip().partition(" => ") for each in edits)],
        [f"tests/{each}" for each in tests.split()],
    )


_TABLE = r"""
the trigger and the readers may read what was there a while ago
    log.dynamodb_table:DynamoDBTable.query caught by wake/test_interleavings_of_the_code.py
    ConsistentRead=True => ConsistentRead=False
a reader registers after it has read
    wake.follow:register_and_read caught by wake/test_interleavings_of_the_code.py
    seconds = wake.ensure_registered(place.record.incarnation, place.page.start) if wake else 0.0 => pass
    read_at = time.monotonic() + seconds => reading = read_on(stores, place, small=small)
    return (read_on(stores, place, small=small), read_at)
        => return (reading, time.monotonic() + (
            wake.ensure_registered(place.record.incarnation, place.page.start) if wake else 0.0))
a process that begins to poll waits for messages
    wake.queue:Waiters.ensure caught by wake/test_interleavings_of_the_code.py
    lapsed = [name for => return False; lapsed = [name for
a process that no longer polls still gets no messages
    wake.queue:Waiters.ensure caught by wake/test_interleavings_of_the_code.py
    found.until_ms, polls=polls) => found.until_ms, polls=bool(polls or was_polling))
a socket's watch reads the tail before it registers
    service.watch:begin_watches caught by wake/test_interleavings_of_sockets.py
    register(living)
        => watched = {record.key: _look(stores, record, math.inf) for record in living}; register(living);
            return watched
a pass of compaction that is resumed learns no keys
    janitor.compact:_Pass._learn_keys
        caught by janitor/test_compact.py::test_a_pass_that_is_resumed_compacts_all_of_it
    pack.start < plan.new_from => pack.start < plan.new_from or plan.is_resumed
batches that do not follow each other are packed
    janitor.pack:_Run.add caught by faults/test_damaged_bytes.py::test_a_damaged_log_is_never_returned
    batch is not self.first and (not batch.checksums.follow(self.last.checksums)) => False
an upload is removed that is published while the janitor looks at it
    janitor.sweep:remove_unused caught by faults/test_late_writes.py
    not is_used and claim_entry(stores.table, due) => not is_used
a lapsed watch is removed though it was renewed meanwhile
    log.waiters:remove_lapsed caught by wake/test_interleavings_of_sockets.py
    table.delete(schema.waiter_key(waiter), tables.equals(schema.UNTIL_MS, waiter.until_ms))
        => table.delete(schema.waiter_key(waiter))
two workers of a shared subscription have one message
    subscriptions.shared:SharedMessage.is_under_way caught by subscriptions/test_shared.py
    self.until_ms is not None and now_ms < self.until_ms => False
a late worker's receipt counts
    subscriptions.shared:apply_receipts caught by subscriptions/test_shared.py
    message.deliveries != deliveries => False
a deletion of a bucket that may have landed is answered as if it had not
    log.buckets:_check_deleted caught by faults/test_lost_replies.py
    refused.maybe_landed and since_ms > mark.ended_ms => False
a creation that may have landed is answered as if it had not
    log.lifecycle:_check_created caught by faults/test_lost_replies.py
    maybe_landed and found.created_ms >= record.created_ms => False
a late copy of a pass's last write puts back which deletions may go
    log.packs:commit_horizon caught by faults/test_late_writes.py
    _is(schema.COMPACTED, record.compacted), is_before) => _is(schema.COMPACTED, record.compacted))
a reader does not skip batches that a pack holds
    log.chain:ChainWalk._in_order caught by janitor/test_packs_interleaved.py
    link.start < reached and self._last is not None => False
a reader does not look for the pack before an offset
    log.chain:ChainWalk._look_back caught by janitor/test_packs_interleaved.py::test_all_is_read_though
    at_most >= 0 and seen < MOST_BEHIND => False
a pack is made of what is trimmed meanwhile
    log.packs:_move caught by janitor/test_packs_interleaved.py::test_all_is_read_though
    as_seen, at_most(schema.RETAINED, start)) => as_seen)
a pack is made whatever others were made meanwhile
    log.packs:_move caught by janitor/test_packs_interleaved.py::test_all_is_read_though
    AllOf(if_live(record.incarnation), as_seen, => AllOf(if_live(record.incarnation),
what has its bytes elsewhere is remembered for ever
    log.tails:RecentBatches._fresh caught by janitor/test_packs_interleaved.py::test_all_is_read_though
    self._clock_ms() - found[1] <= MAX_AGE_MS => True
a deletion goes with what it deletes
    protocol.compaction:Horizon.at caught by janitor/test_compact.py
    self.next_offset and now_ms >= self.next_ms => self.next_offset
what a process remembers is read below what is compacted
    log.read:read_page
        caught by janitor/test_compact.py::test_what_a_process_remembers_is_not_read_below_what_is_compacted
    start < record.compacted => False
a deletion goes although something before it may be there
    janitor.compact:_Pass.__init__
        caught by janitor/test_compact.py::test_a_fork_keeps_deletions_of_what_it_inherits
    not record.lineage and plan.packs[0].start in {0, record.retained} => True
a janitor takes another's pack for its own
    log.packs:commit_pack caught by janitor/test_compact.py
    found is None or found.get(schema.BLOB) != item[schema.BLOB] => found is None
"""

BUGS = [_bug(block) for block in re.split(r"^(?=\S)", _TABLE.strip(), flags=re.MULTILINE) if block]
