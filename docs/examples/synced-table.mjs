// A table that every browser has: what a new one loads of 5,000 changes to 200 rows, with compaction and without.
//
//   PACK_AFTER_SECONDS=0 make run     (compaction follows within seconds; in production an hour or two later)
//   BASE_URL=http://127.0.0.1:4437 node docs/examples/synced-table.mjs
import assert from "node:assert/strict"
import { randomUUID } from "node:crypto"
import { setTimeout as sleep } from "node:timers/promises"
import { DurableStream, IdempotentProducer } from "@durable-streams/client"
import { createStateSchema } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"

const ROWS = 200
const CHANGES = 5000
// Any Standard Schema does: Zod, Valibot, ArkType.
const task = { "~standard": { version: 1, vendor: "example", validate: (value) => ({ value }) } }
const state = createStateSchema({ tasks: { schema: task, type: "task", primaryKey: "id" } })

const compaction = { "Stream-Compact": "last-by-key", "Stream-Compact-After": "0" }

async function createTable(headers) {
  const url = `${process.env.BASE_URL}/v1/stream/tasks-${randomUUID()}`
  const created = await fetch(url, { method: "PUT", headers: { "Content-Type": "application/json", ...headers } })
  assert.equal(created.status, 201)
  return { url, contentType: "application/json" }
}

/** Each change is a whole row: after compaction it may be all that there is of it. */
function change(number) {
  const id = `task-${(number * 37) % ROWS}`
  if (number % 20 === 19) return state.tasks.delete({ key: id })
  const value = { id, title: `What ${id} is about`, done: number % 3 === 0, changes: number }
  return number < ROWS ? state.tasks.insert({ value }) : state.tasks.upsert({ value })
}

async function write(table) {
  const producer = new IdempotentProducer(new DurableStream(table), "writer", { onError: (error) => assert.fail(error) })
  for (let number = 0; number < CHANGES; number += 1) {
    producer.append(JSON.stringify(change(number)))
    if (number % 20 === 19) await producer.flush()
  }
  await producer.detach()
}

/** What a new client loads to have all rows. */
async function load(table) {
  const loaded = { messages: 0, bytes: 0 }
  const counting = async (...request) => {
    const answer = await fetch(...request)
    loaded.bytes += (await answer.clone().arrayBuffer()).byteLength
    return answer
  }
  const db = createStreamDB({
    streamOptions: { ...table, fetch: counting },
    state,
    live: false,
    onEvent: () => (loaded.messages += 1),
  })
  await db.preload()
  return { ...loaded, rows: rowsOf(db) }
}

const rowsOf = (db) => new Map(db.collections.tasks.toArray.map((row) => [row.id, row.changes]).sort())

const whole = await createTable({})
const compacted = await createTable(compaction)
const open = createStreamDB({ streamOptions: compacted, state }) // A browser that is there all the time.
await open.preload()
await Promise.all([whole, compacted].map(write))

const before = await load(whole)
let after = await load(compacted)
while (after.messages > 1.25 * ROWS) {
  await sleep(500)
  after = await load(compacted)
}
assert.deepEqual(after.rows, before.rows)
assert.deepEqual(rowsOf(open), before.rows)
for (const [name, { messages, bytes, rows }] of Object.entries({ without: before, with: after })) {
  console.log(`${name} compaction: ${messages} messages, ${bytes} bytes for ${rows.size} rows`)
}
process.exit(0)
