"""Bugs, and the tests that are to catch each: a rule that matters only in one order of events, after a crash,
a lost reply or damage has a row. A rule that one request shows has its own test instead.

    the bug
        module:function caught by tests, of the lowest layer that knows the rule, in seconds
        a piece of the function => what stands in its place

The piece is written as `ast.unparse` prints the function, and occurs there once: moves within the module,
formatting and comments change nothing. A class or a constant can stand for the function. A piece of a `.js`
file is a piece of its text. Modules are named below `tidemark`, or from `functions` or `tests` on; tests
below `tests/`. A line that is indented further goes on.
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
        if self.path.endswith(".js"):
            return self._edited(source)
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
    path = module if module.endswith(".js") else module.replace(".", "/") + ".py"
    return Bug(
        name,
        path if path.startswith(("functions/", "tests/")) else f"shared/tidemark/{path}",
        function,
        [(before, after) for before, _, after in (each.strip().partition(" => ") for each in edits)],
        [f"tests/{each}" for each in tests.split()],
    )


_TABLE = r"""
a trim does not wait for forks
    janitor.sweep:trim caught by service/test_snapshots.py
    record.references => False
a try without an answer counts as one that did nothing
    aws.retry:NoAnswer caught by faults/test_table_fails.py
    outcome_known = False => outcome_known = True
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
a write that hangs is reported as not done
    engine.turns:TurnThread._give_up caught by engine/test_hanging_disk.py
    OutcomeUnknown() => StorageUnavailable()
an append right behind what a reader has is no news
    wake.follow:Follower.is_interested caught by wake/test_hub.py
    start >= self.offset => start > self.offset
a socket is told beyond the end of its lease, and so of its token
    http.socket_session:SocketSession._look caught by http/test_socket.py
    time.monotonic() >= watch.ends_at => False
an upload is removed that is published while the janitor looks at it
    janitor.sweep:remove_unused caught by faults/test_late_writes.py
    not is_used and claim_entry(stores.table, due) => not is_used
what a try may have written is forgotten with the next one, and written twice
    client.batches:Batches.answered caught by client/test_batches.py
    batch.may_be_written |= => batch.may_be_written =
a lapsed watch is removed though it was renewed meanwhile
    log.waiters:remove_lapsed caught by wake/test_interleavings_of_sockets.py
    table.delete(schema.waiter_key(waiter), tables.equals(schema.UNTIL_MS, waiter.until_ms))
        => table.delete(schema.waiter_key(waiter))
an unwatch that is handled late ends a later watch
    log.waiters:end_watches.end caught by wake/test_socket_function.py
    table.delete(_watch_key(connection_id, incarnation), tables.Compared(schema.ASKED_MS, '<', asked_ms))
        => table.delete(_watch_key(connection_id, incarnation))
a socket that could not be told is taken for one that is gone
    wake.notifier:SocketApi._ask caught by wake/test_sockets.py
    status == HTTPStatus.GONE => status != HTTPStatus.OK
the answers of a group commit are swapped
    service.group_commit:GroupCommit._commit caught by faults/test_waiting_appends.py
    zip(group, answers, strict=True) => zip(group, reversed(answers), strict=True)
the checksum of a pack's block is not checked
    log.pack_format:check_block caught by log/test_pack_format.py
    if len(stored) != entry.stored_bytes or zlib.crc32(stored) != entry.checksum:
        => if len(stored) != entry.stored_bytes:
the checksum of a batch is not checked
    log.records:Checksums.fit caught by faults/test_damaged_bytes.py
    self.after is None or self.after == _crc(self.before, start, data) => True
a batch need not follow the one before it
    log.records:Checksums.follow caught by faults/test_damaged_bytes.py
    self.before is None or earlier.after in {None, self.before} => True
a reader goes on with the cursor of an earlier stream of this name
    protocol.caching:is_of_another caught by protocol/test_caching.py
    return CATCH_UP_INTERVAL <= cursor >> MARK_BITS => return False and cursor >> MARK_BITS
a tail is remembered for ever
    log.tails:TailCache.get caught by log/test_tails.py
    not 0 <= now_ms - head.learned_ms < MAX_AGE_MS => False
a write that meets itself counts as lost
    log.append:check_landed caught by faults/test_rules_of_the_proof.py
    winner.append_id != entry.append_id => True
a deletion of a bucket that may have landed is answered as if it had not
    log.buckets:_check_deleted caught by faults/test_lost_replies.py
    refused.maybe_landed and since_ms > mark.ended_ms => False
a creation that may have landed is answered as if it had not
    log.lifecycle:_check_created caught by faults/test_lost_replies.py
    maybe_landed and found.created_ms >= record.created_ms => False
a stream ends as if no fork had been made of it meanwhile
    log.lifecycle:if_unreferenced caught by service/test_forks.py
    tables.AllOf(tables.equals(schema.INCARNATION, incarnation), NONE_LEFT)
        => tables.equals(schema.INCARNATION, incarnation)
a fork is made of a source that was compacted beyond it meanwhile
    log.lifecycle:add_reference
        caught by service/test_forks.py::test_a_fork_is_made_of_its_source_as_compacted_by_then
    at_most(schema.COMPACTED, made.compacted), shows_snapshot => shows_snapshot
a fork is made below what its source has compacted
    service.create:fork_origin caught by janitor/test_compacted_forks.py
    anchor < record.compacted => False
a late copy of a pass's last write puts back which deletions may go
    log.packs:commit_horizon caught by faults/test_late_writes.py
    _is(schema.COMPACTED, record.compacted), is_before) => _is(schema.COMPACTED, record.compacted))
a lower snapshot takes the place of one that landed meanwhile
    log.retention:_move_pointer caught by service/test_snapshots.py
    at_most(schema.RETAINED, snapshot.offset), shows_snapshot(record.snapshot)
        => if_live(record.incarnation)
batches below a snapshot are removed while a writer may know them for the tail
    service.snapshots:_commit caught by service/test_snapshots.py
    stores.clock_ms() + RECLAIM_AFTER_MS => stores.clock_ms()
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
a pass goes on though a fork was made
    log.packs:_move caught by janitor/test_compacted_forks.py
    AllOf(condition, _is(schema.COMPACTED, record.compacted), NONE_LEFT)
        => AllOf(condition, _is(schema.COMPACTED, record.compacted))
a deletion goes with what it deletes
    protocol.compaction:Horizon.at caught by janitor/test_compact.py
    self.next_offset and now_ms >= self.next_ms => self.next_offset
what a process remembers is read below what is compacted
    log.read:read_page
        caught by janitor/test_compact.py::test_what_a_process_remembers_is_not_read_below_what_is_compacted
    start < record.compacted => False
a page is read by how far the stream was compacted when it was remembered
    service.read:load_page
        caught by janitor/test_compact.py::test_what_a_process_remembers_is_not_read_below_what_is_compacted
    or record.compacted != remembered.record.compacted: => :
a deletion goes although something before it may be there
    janitor.compact:_Pass.__init__
        caught by janitor/test_compact.py::test_a_fork_keeps_deletions_of_what_it_inherits
    not record.lineage and plan.packs[0].start in {0, record.retained} => True
a page has the entity tag that it had before the compaction
    log.read:Page.crc
        caught by janitor/test_compact.py::test_a_page_from_before_the_compaction_has_another_entity_tag
    None if self.compacted else self.batches[-1].checksums.after => self.batches[-1].checksums.after
a message is superseded by an earlier one
    janitor.compact:_Pass._is_gone caught by janitor/test_compact.py
    self._last.get(digest, 0) > end => self._last.get(digest, 0) != end
a janitor takes another's pack for its own
    log.packs:commit_pack caught by janitor/test_compact.py
    found is None or found.get(schema.BLOB) != item[schema.BLOB] => found is None
mail is committed by the second batch, though the first one holds it
    log.combining:ChainEnd.is_open caught by log/test_combining.py
    box == self.last_start and self.holds(mail_id) is None => box == self.last_start
a commit of the engine is acknowledged before it is on the disk
    engine.sqlite_file:_SETTINGS caught by engine/test_durability.py
    PRAGMA synchronous = FULL; => PRAGMA synchronous = OFF;
the client claims an epoch while a batch of the one before may be written
    client.batches:Batches._may_claim caught by client/test_batches.py
    self._is_first and (not batch.may_be_written) => self._is_first
a tail is remembered before its commit, and stays remembered after its turn was taken back
    server.system:CommittedTails.learn caught by server/test_system.py
    self._database.then(lambda: learn(head)) => learn(head)
a batch is remembered before its commit, and stays remembered after its turn was taken back
    server.system:CommittedBatches.keep caught by server/test_system.py
    self._database.then(lambda: shared.append(keep(incarnation, *batches)))
        => shared.append(keep(incarnation, *batches))
a pack is remembered before its commit, and stays remembered after its turn was taken back
    server.system:CommittedBatches.keep_found caught by server/test_system.py
    self._database.then(lambda: keep_found(incarnation, entry)) => keep_found(incarnation, entry)
a transaction's token stays remembered after its turn was taken back
    tests.stack.dynamodb:DynamoDBProtocol.__init__ caught by engine/test_database.py
    table.database.taken_back.append(self._forget_uncommitted) => pass
waiters are woken though their turn was taken back
    engine.database:Database._take_back caught by engine/test_database.py
    self._resting, self._then, self.is_dirty = ([], [], False) => self._resting, self.is_dirty = ([], False)
a call that hides a failure is answered, though its turn was taken back
    engine.database:Database._take_back caught by engine/test_database.py
    self._call.is_lost = True => pass
a call stays shared until it ends, so that a reader is given what is older than its request
    wake.follow:SingleFlight._make caught by wake/test_single_flight.py
    result = self._results.pop(name) => result = self._results[name]
    result.set_result(await self._run(call))
        => result.set_result(await self._run(call)); self._results.pop(name)
a registration of a waiter counts as fresh until it lapses
    wake.queue:Waiters.ensure caught by wake/test_waiters.py
    found.until_ms - now_ms > RENEW_MS => found.until_ms - now_ms > 0
a registration counts as written though its write failed
    wake.queue:Waiters.ensure caught by wake/test_waiters.py
    put_waiter(self._table, => found.until_ms = now_ms + LIFE_MS; put_waiter(self._table,
backup copies blobs before the table
    cli.store:back_up caught by cli/test_store.py
    _copy_beside(data_dir, part) => pass
    table.backup(copy) => _copy_beside(data_dir, part); table.backup(copy)
a change is queued behind the commit of what was changed
    server.system:EmbeddedSystem._written caught by server/test_system.py
    self.changes.send_with(db, [json.dumps(record)])
        => self.database.then(lambda: self.changes.send([json.dumps(record)]))
a change is done before it is handed on
    server.system:ChangeFollower.work caught by server/test_system.py
    writes = [ => self._changes.done(taken); writes = [
a delivery is done before its notice is handled
    server.system:Deliveries._handle caught by server/test_system.py
    self._notices.done([message]) => pass
    self._deliverer.handle(notice) => self._notices.done([message]); self._deliverer.handle(notice)
readers are woken before the commit
    server.system:EmbeddedSystem._written caught by server/test_system.py
    self.database.then(lambda: self.wake.hub.wake(message.key, message.incarnation, message.start))
        => self.wake.hub.wake(message.key, message.incarnation, message.start)
a row of the engine is not compared with its checksum
    engine.rows:decoded caught by engine/test_rows.py
    crc32(stored) != crc => False
a search that a damaged key has misled proves that a row is missing
    engine.rows:Rows.find caught by engine/test_rows.py
    _check_place(db, place) => pass
a stream ends before the tail that it had
    service.read:_try_page caught by faults/test_damaged_bytes.py
    known_tail is None or start > known_tail.offset => True
a snapshot's checksum is not checked
    service.stores:Stores.snapshot_blob caught by faults/test_damaged_bytes.py
    snapshot.crc not in {None, fast_zlib().crc32(blob)} => False
a snapshot that a URL hands out is not compared with its checksum
    server.blob_urls:BlobUrls._hand_out caught by server/test_blob_urls.py
    asked.get('crc', f'{crc:08x}') != f'{crc:08x}' => False
the state of a producer that a batch pushes out is lost
    log.append:put_batch caught by faults/test_rules_of_the_proof.py
    [tables.Write(item, condition=tables.IF_ABSENT), *states]
        => [tables.Write(item, condition=tables.IF_ABSENT)]
a second process may use the data folder
    server.lock:_lock caught by server/test_lock.py
    fcntl.LOCK_EX => fcntl.LOCK_SH
a blob is named before it is on the disk
    engine.files:BlobFiles.writing caught by engine/test_files.py
    os.fsync(file.fileno()) => pass
the name of a blob is not on the disk
    engine.files:BlobFiles.writing caught by engine/test_files.py
    _sync_folder(path.parent) => pass
a call is answered before the commit of its turn
    engine.database:Database._make_turn caught by engine/test_database.py
    turn.has_run() => turn.has_run(is_over=True)
what is to follow a commit comes before it
    engine.database:Database.then caught by engine/test_database.py
    self._then.append(call) => call()
the client sends a write again that may have been carried out
    client.exchange:exchange caught by client/test_core.py
    passing(reply) and may_repeat(reply) => passing(reply)
a follower reads on in a stream that was replaced
    client.reading:ReadOperations.same caught by client/test_core.py
    tag and incarnation not in {None, tag[1]} => False
an answer that is not the protocol's acknowledges a message
    client.batches:Batches._not_written caught by client/test_batches.py
    'stream-next-offset' not in headers and 'producer-seq' not in headers => False
a copy takes what landed late for its own append
    cli.transfer:StreamTarget.write caught by cli/test_transfer.py
    return False => return True
the janitor's entries are copied before a write that may still land
    ops.copy_table:Copy.run caught by ops/test_copy_table.py
    self._wait_for_late_copies() => pass
the janitor removes the queue of a reader that has not registered yet
    wake.notifier:sweep_queues caught by wake/test_sweep.py
    now_ms - (queues.made_ms(url) or now_ms) >= ORPHAN_MS => queues.made_ms(url) is not None
two processes take one call
    proxy.calls:Calls.take caught by proxy/test_calls.py
    once='taken', lease_ms=lease_ms => lease_ms=lease_ms
an answer is written behind that of an earlier call
    proxy.calls:Calls.open_answer caught by proxy/test_calls.py
    if head.tail.offset: => if False:
the answer of the next call is removed with this call
    proxy.calls:Calls.remove caught by proxy/test_calls.py
    (answer_key(call_id), call_key(call_id)) => (call_key(call_id), answer_key(call_id))
the removal of a call does not stop its upstream
    proxy.pipe:_Piping.watch caught by proxy/test_calls.py
    self.stop(ABORTED) => pass
an answer that is cut is closed under a sequence number that may be used
    proxy.pipe:_Piping.finish caught by proxy/test_calls.py
    await (self.cut() if error else self.write(close=True)) => await self.write(close=True)
a socket's data go across a gap
    log.read:load_news caught by service/test_watch.py
    behind and entry.end != behind[0].start => False
"""

BUGS = [_bug(block) for block in re.split(r"^(?=\S)", _TABLE.strip(), flags=re.MULTILINE) if block]
