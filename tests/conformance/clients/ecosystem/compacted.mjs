// @durable-streams/state on a compacted log: StreamDB and MaterializedState end as they do on the whole log, over
// random inserts, updates, upserts, deletes and rows that come again. The server compacts at once.
import assert from "node:assert/strict"
import { setTimeout as sleep } from "node:timers/promises"
import { DurableStream } from "@durable-streams/client"
import { createStateSchema, MaterializedState } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"

const anything = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } }
const state = createStateSchema({
  users: { schema: anything, type: "user", primaryKey: "id" },
  notes: { schema: anything, type: "note", primaryKey: "id" },
})
const COMPACT = { "Stream-Compact": "last-by-key", "Stream-Compact-After": "0" }
const AND_DELETIONS = { "Stream-Compact-Tombstones": "0" }
const SEED = Number(process.env.SEED ?? Math.floor(Math.random() * 2 ** 31))
console.log(`SEED=${SEED}`)
let drawn = SEED
const random = () => ((drawn = (Math.imul(drawn, 1103515245) + 12345) >>> 0) >>> 8) / 2 ** 24
const below = (end) => Math.floor(random() * end)
const one = (of) => of[below(of.length)]

function randomEvent(number) {
  if (random() < 0.05) return { headers: { control: "snapshot-end" } } // It has no key.
  const [collection, key] = [one([state.users, state.notes]), one(["1", "2", "3", "4", "ö/5"])]
  const kind = one(["insert", "update", "upsert", "delete"])
  if (kind === "delete") return collection.delete({ key })
  return collection[kind]({ value: { id: key, number, tags: [one("abc")] } }) // A whole row.
}

async function create(headers = {}) {
  const url = `${process.env.BASE_URL}/v1/stream/compacted-${crypto.randomUUID()}`
  await fetch(url, { method: "PUT", headers: { "Content-Type": "application/json", ...headers } })
  return new DurableStream({ url, contentType: "application/json" })
}

async function open(stream) {
  const db = createStreamDB({ stream, state })
  await db.preload()
  return db
}

/** The rows of each collection, in the order of their last changes. */
function rowsOf(db) {
  const rows = Object.entries(db.collections).map(([name, collection]) => {
    const inOrder = collection.toArray.sort((one, other) => one._seq - other._seq)
    return [name, inOrder.map(({ id, number, tags }) => ({ id, number, tags }))]
  })
  return Object.fromEntries(rows)
}

/** Reads on to the tail. */
async function materialize(stream, { made = new MaterializedState(), offset = "-1" } = {}) {
  const response = await stream.stream({ offset, live: false })
  const events = await response.json()
  for (const event of events) if (event.headers.operation) made.apply(event)
  return { made, offset: response.offset, messages: events.length }
}

const sorted = ({ made }) => ["user", "note"].map((type) => new Map([...made.getType(type)].sort()))

async function isCompacted({ url }) {
  const { headers } = await fetch(url, { method: "HEAD" })
  return 2 * Number(headers.get("Stream-Compacted-Offset")) > Number(headers.get("Stream-Next-Offset"))
}

async function check(appends, middle) {
  const streams = [await create(), await create(COMPACT), await create({ ...COMPACT, ...AND_DELETIONS })]
  const [whole, compacted, withoutDeletions] = streams
  const write = (events) =>
    Promise.all(streams.flatMap((stream) => events.map((event) => stream.append(JSON.stringify(event)))))
  const live = await open(compacted)
  for (const events of appends.slice(0, middle)) await write(events)
  const paused = await materialize(compacted)
  for (const events of appends.slice(middle)) await write(events)
  while (!(await isCompacted(compacted)) || !(await isCompacted(withoutDeletions))) await sleep(200)

  const reference = await materialize(whole)
  const expected = [rowsOf(await open(whole)), sorted(reference)]
  for (const stream of [compacted, withoutDeletions]) {
    const fresh = await materialize(stream)
    assert(fresh.messages < reference.messages)
    assert.deepEqual([rowsOf(await open(stream)), sorted(fresh)], expected)
  }
  assert.deepEqual(sorted(await materialize(compacted, paused)), expected[1])
  while (live.offset < reference.offset) await sleep(20)
  assert.deepEqual(rowsOf(live), expected[0])
}

const rounds = Array.from({ length: 12 }, () => {
  const appends = Array.from({ length: 40 + below(40) }, (_, number) =>
    Array.from({ length: 1 + below(4) }, (_, place) => randomEvent(4 * number + place)),
  )
  return [appends, below(appends.length)]
})
await Promise.all(rounds.map((round) => check(...round)))
process.exit(0)
