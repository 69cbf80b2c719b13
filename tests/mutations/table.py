"""Bugs, one a row, and the tests that are to catch each.

`before` occurs once in the file. The tests are of the lowest layer that knows the rule, and run in seconds. A
bug that no test catches in that time has `covered_by` in place of tests: it says what does catch it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...] = ()
    covered_by: str = ""

    @property
    def path(self) -> str:
        """From the top of the tree."""
        return self.file if self.file.startswith("functions/") else f"shared/tidemark/{self.file}"


def mutation(name: str, file: str, before: str, after: str, *tests: str, covered_by: str = "") -> Mutation:
    """Files are named below `shared/tidemark/`, or from `functions/` on; tests below `tests/`."""
    return Mutation(name, file, before, after, tests, covered_by)


MUTATIONS = (
    mutation(
        "a trim does not wait for forks",
        "janitor/sweep.py",
        "if record.references:",
        "if False:",
        "log/test_snapshots.py",
    ),
    mutation(
        "storage that is silent is asked again by every request",
        "aws/retry.py",
        "return is_probe",
        "return True",
        "faults/test_breaker.py",
    ),
    mutation(
        "a try without an answer counts as one that did nothing",
        "aws/retry.py",
        "retryable = True\n    outcome_known = False",
        "retryable = True\n    outcome_known = True",
        "faults/test_table_fails.py",
    ),
    mutation(
        "the hub is deaf: it wakes nobody",
        "wake/hub.py",
        "self._forget_waits(listeners)\n        _wake(listeners)\n\n    def wake_all",
        "self._forget_waits(listeners)\n\n    def wake_all",
        "wake/test_hub.py",
    ),
    mutation(
        "messages of the queue are not handed on",
        "wake/wake.py",
        "self._hub.wake(message.key, message.incarnation, message.start)",
        "pass",
        "wake/test_receiver.py",
    ),
    mutation(
        "the answers of a group commit are swapped",
        "service/group_commit.py",
        "zip(group, answers, strict=True)",
        "zip(group, reversed(answers), strict=True)",
        "faults/test_waiting_appends.py",
    ),
    mutation(
        "the checksum of a pack's block is not checked",
        "protocol/pack.py",
        "if len(stored) != entry.stored_bytes or zlib.crc32(stored) != entry.checksum:",
        "if len(stored) != entry.stored_bytes:",
        "protocol/test_pack.py",
    ),
    mutation(
        "the checksum of a batch is not checked",
        "log/records.py",
        "return self.after is None or self.after == crc32(data, _head_crc(self.before, start))",
        "return True",
        "faults/test_damaged_bytes.py",
    ),
    mutation(
        "a batch need not follow the one before it",
        "log/records.py",
        "return self.before is None or earlier.after in {None, self.before}",
        "return True",
        "faults/test_damaged_bytes.py",
    ),
    mutation(
        "offsets are texts of unequal length",
        "protocol/offset.py",
        'return f"{position:0{WIDTH}d}"',
        'return f"{position}"',
        "protocol/test_offset.py",
    ),
    mutation(
        "a lease that is over is not fenced",
        "protocol/wake_state.py",
        "if not token_generation == generation == state.generation or wake_id != state.wake_id:",
        "if wake_id != state.wake_id and not generation:",
        "protocol/test_wake_state.py",
    ),
    mutation(
        "an expired stream is served",
        "service/load.py",
        "if head.is_expired(stores.clock_ms()):",
        "if False:",
        "http/test_expiry.py",
    ),
    mutation(
        "retention lets go of messages too early",
        "service/retention.py",
        "now_ms - record.retention.seconds * 1000",
        "now_ms - record.retention.seconds * 500",
        "log/test_retention.py",
    ),
    mutation(
        "a gap in a producer's sequence is accepted",
        "protocol/producer.py",
        "elif claim.seq > state.seq + 1:",
        "elif False:",
        "protocol/test_producer.py",
    ),
    mutation(
        "the ETag of another life of the stream fits",
        "protocol/caching.py",
        """return f'"{incarnation}:{render_offset(start)}{history}:""",
        """return f'"{render_offset(start)}{history}:""",
        "protocol/test_caching.py",
    ),
    mutation(
        "whoever may write a stream may delete it",
        "http/operations.py",
        '"routes:delete_stream", "manage"',
        '"routes:delete_stream", "write manage"',
        "authorization/test_matrix.py",
    ),
    mutation(
        "the origin secret is not compared",
        "http/security/origin_secret.py",
        'hmac.compare_digest((sent or "").encode(), expected.encode())',
        "True",
        "authorization/test_edge_only.py",
    ),
    mutation(
        "a grant of a prefix covers the whole bucket",
        "protocol/authorization.py",
        "return target.stream_id.startswith(self.prefix)",
        "return True",
        "authorization/test_matrix.py",
    ),
    mutation(
        "the cursor does not move on",
        "protocol/caching.py",
        "(client_cursor >> MARK_BITS) + 1)",
        "client_cursor >> MARK_BITS)",
        "protocol/test_caching.py",
    ),
    mutation(
        "a reader goes on with the cursor of an earlier stream of this name",
        "protocol/caching.py",
        "return CATCH_UP_INTERVAL <= cursor >> MARK_BITS",
        "return False and cursor >> MARK_BITS",
        "protocol/test_caching.py",
    ),
    mutation(
        "an upload can be written over",
        "blobs.py",
        '"Key": key, "IfNoneMatch": PUT_HEADERS["If-None-Match"]}',
        '"Key": key}',
        "http/test_snapshots.py",
    ),
    mutation(
        "a CRLF that two appends share is two line ends",
        "protocol/sse.py",
        'if data.endswith(b"\\r"):',
        "if False:",
        "http/test_sse.py",
    ),
    mutation(
        "an array of JSON is one message",
        "protocol/messages.py",
        'if body.lstrip(_WHITESPACE).startswith(b"["):',
        "if False:",
        "protocol/test_messages.py",
    ),
    mutation(
        "that a stream is closed is not stored",
        "log/schema/batches.py",
        'item[CLOSED] = {"BOOL": True}',
        "pass",
        "log/test_schema.py",
    ),
    mutation(
        "a read does not renew the time to live",
        "service/read.py",
        "if not needs_renewal(record.expiry, touched_ms, now_ms):",
        "if True:",
        "http/test_expiry.py",
    ),
    mutation(
        "a tail is remembered for ever",
        "log/tails.py",
        "not 0 <= now_ms - head.learned_ms < MAX_AGE_MS",
        "False",
        "log/test_tails.py",
    ),
    mutation(
        "a write that meets itself counts as lost",
        "log/append.py",
        "if winner.append_id != batch.append_id:",
        "if True:",
        "faults/test_rules_of_the_proof.py",
    ),
    mutation(
        "mail is committed by the second batch, though the first one holds it",
        "protocol/mail.py",
        "return box == self.last_start and self.holds(mail_id) is None",
        "return box == self.last_start",
        "protocol/test_mail.py",
    ),
    mutation(
        "a webhook may lead into the private network",
        "protocol/webhook_url.py",
        "if refused or not address.is_global or",
        "if refused or",
        "protocol/test_webhook_url.py",
    ),
    mutation(
        "a commit of the engine is acknowledged before it is on the disk",
        "engine/sqlite_file.py",
        "PRAGMA synchronous = FULL;",
        "PRAGMA synchronous = OFF;",
        "engine/test_durability.py",
    ),
    mutation(
        "the beginning of a stream is read where it was let go of",
        "service/read.py",
        "return record.retained if record.snapshot is None else 0",
        "return 0",
        "http/test_retention.py",
    ),
    mutation(
        "the client claims an epoch while a batch of the one before may be written",
        "client/batches.py",
        "return self._claiming and not batch.may_be_written",
        "return self._claiming",
        "client/test_batches.py",
    ),
    mutation(
        "the removal of a batch leaves all but its first object",
        "blobs.py",
        "return [name for key in keys for name, _ in parts_of(key, 0)]",
        "return [name for key in keys for name, _ in parts_of(key, 0)[:1]]",
        "blobs/test_keys.py",
    ),
    mutation(
        "a tail is remembered before its commit, and stays remembered after its turn was taken back",
        "server/system.py",
        "self._database.then(lambda: learn(head))",
        "learn(head)",
        "engine/test_system.py",
    ),
    mutation(
        "a batch is remembered before its commit, and stays remembered after its turn was taken back",
        "server/system.py",
        "self._database.then(lambda: shared.append(keep(incarnation, *batches)))",
        "shared.append(keep(incarnation, *batches))",
        "engine/test_system.py",
    ),
    mutation(
        "a pack is remembered before its commit, and stays remembered after its turn was taken back",
        "server/system.py",
        "self._database.then(lambda: keep_pack(incarnation, pack))",
        "keep_pack(incarnation, pack)",
        "engine/test_system.py",
    ),
    mutation(
        "a transaction's token stays remembered after its turn was taken back",
        "engine/dynamodb.py",
        "table.database.taken_back.append(self._forget_uncommitted)",
        "pass",
        "engine/test_database.py",
    ),
    mutation(
        "waiters are woken though their turn was taken back",
        "engine/database.py",
        "self._resting, self._then, self.is_dirty = [], [], False",
        "self._resting, self.is_dirty = [], False",
        "engine/test_database.py",
    ),
    mutation(
        "a call that hides a failure is answered, though its turn was taken back",
        "engine/database.py",
        "self._call.is_lost = True",
        "pass",
        "engine/test_database.py",
    ),
    mutation(
        "a call stays shared until it ends, so that a reader is given what is older than its request",
        "http/backend.py",
        "        shared = self._shared.pop(name)\n        try:\n"
        "            result = await self._run(shared.call)",
        "        shared = self._shared[name]\n        try:\n            try:\n"
        "                result = await self._run(shared.call)\n"
        "            finally:\n                self._shared.pop(name)",
        "wake/test_single_flight.py",
    ),
    mutation(
        "readers that want the same at once each make a call",
        "http/backend.py",
        "async def share(self, name: Hashable, call: Callable[[], Any]) -> Any:",
        "async def share(self, name: Hashable, call: Callable[[], Any]) -> Any:\n        name = object()",
        "wake/test_single_flight.py",
    ),
    mutation(
        "readers that want different things share one call",
        "http/backend.py",
        "async def share(self, name: Hashable, call: Callable[[], Any]) -> Any:",
        "async def share(self, name: Hashable, call: Callable[[], Any]) -> Any:\n        name = None",
        "wake/test_single_flight.py",
    ),
    mutation(
        "a reader that is cancelled cancels the call that others share",
        "http/backend.py",
        "await asyncio.shield(shared.result)",
        "await shared.result",
        "wake/test_single_flight.py",
    ),
    mutation(
        "each caller fetches a value that one fetches for all",
        "http/security/refreshing_cache.py",
        "with self._lock:",
        "if True:",
        "authorization/test_keys.py",
    ),
    mutation(
        "a withdrawn key is accepted for ever",
        "http/security/refreshing_cache.py",
        "or now - self._fetched_at > FRESH_SECONDS",
        "",
        "authorization/test_keys.py",
    ),
    mutation(
        "a key that nobody has seen for a day is accepted",
        "http/security/refreshing_cache.py",
        "return self._value if now - self._fetched_at <= STALE_SECONDS else None",
        "return self._value",
        "authorization/test_keys.py",
    ),
    mutation(
        "each request fetches keys that cannot be fetched, or that lack the one it names",
        "http/security/refreshing_cache.py",
        "if may_try and (",
        "if (",
        "authorization/test_keys.py",
    ),
    mutation(
        "an accepted token is remembered for ever",
        "http/security/authorization.py",
        "if remembered is not None and self._clock() < remembered[1] else None",
        "if remembered is not None else None",
        "authorization/test_keys.py",
    ),
    mutation(
        "a registration of a waiter counts as fresh until it lapses",
        "wake/wake.py",
        "registration.until_ms - self._clock_ms() > RENEW_MS",
        "registration.until_ms - self._clock_ms() > 0",
        "wake/test_registry.py",
    ),
    mutation(
        "a registration counts as written though its write failed",
        "wake/wake.py",
        "until_ms = self._clock_ms() + LIFE_MS",
        "found.until_ms = until_ms = self._clock_ms() + LIFE_MS",
        "wake/test_registry.py",
    ),
    mutation(
        "backup copies blobs before the table",
        "ops/store.py",
        "        _copy_table(table, target / source.name)\n        _copy_beside(data_dir, target)",
        "        _copy_beside(data_dir, target)\n        _copy_table(table, target / source.name)",
        "ops/test_store.py",
    ),
    mutation(
        "a change is queued behind the commit of what was changed",
        "server/system.py",
        "self.changes.send_with(db, [json.dumps(record)])",
        "self.database.then(lambda: self.changes.send([json.dumps(record)]))",
        "engine/test_system.py",
    ),
    mutation(
        "a change is done before it is handed on",
        "server/system.py",
        "            records: list[dict[str, Any]] = [",
        "            self._changes.done(taken)\n            records: list[dict[str, Any]] = [",
        "engine/test_system.py",
    ),
    mutation(
        "a delivery is done before the subscription is attended to",
        "server/system.py",
        "            self._attendant.attend(attention)\n            self._attention.done([message])",
        "            self._attention.done([message])\n            self._attendant.attend(attention)",
        "engine/test_system.py",
    ),
    mutation(
        "readers are woken before the commit",
        "server/system.py",
        "self.database.then(lambda: self.wake.hub.wake(message.key, message.incarnation, message.start))",
        "self.wake.hub.wake(message.key, message.incarnation, message.start)",
        "engine/test_system.py",
    ),
    mutation(
        "a row of the engine is not compared with its checksum",
        "engine/rows.py",
        "    if crc is not None and crc32(stored) != crc:\n        raise",
        "    if False:\n        raise",
        "engine/test_rows.py",
    ),
    mutation(
        "a search that a damaged key has misled proves that a row is missing",
        "engine/rows.py",
        "            _check_place(db, place)\n            return None",
        "            return None",
        "engine/test_rows.py",
    ),
    mutation(
        "a stream ends before the tail that it had",
        "service/read.py",
        "if known_tail is None or missing > known_tail.offset:",
        "if True:",
        "faults/test_damaged_bytes.py",
    ),
)
