// @durable-streams/state on a compacted log: StreamDB and MaterializedState end as they do on the whole log, over
// random inserts, updates, upserts, deletes and rows that come again.
import assert from "node:assert/strict"
import { DurableStream } from "@durable-streams/client"
import { createStateSchema, MaterializedState } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"

const anything = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } }
const state = createStateSchema({
  users: { schema: anything, type: "user", primaryKey: "id" },
  notes: { schema: anything, type: "note", primaryKey: "id" },
})
const SEED = Number(process.env.SEED ?? Math.floor(Math.random() * 2 ** 31))
console.log(`SEED=${SEED}`)
let drawn = SEED
const random = () => ((drawn = (Math.imul(drawn, 1103515245) + 12345) >>> 0) >>> 8) / 2 ** 24
const below = (end) => Math.floor(random() * end)
const one = (of) => of[below(of.length)]

function randomChange(number) {
  const [collection, key] = [one([state.users, state.notes]), one(["1", "2", "3", "4", "ö/5"])]
  const kind = one(["insert", "update", "upsert", "delete"])
  if (kind === "delete") return collection.delete({ key })
  return collection[kind]({ value: { id: key, number, tags: [one("abc")] } }) // A whole row.
}

const keyOf = (event) => (event.headers.operation ? `${event.type} ${event.key}` : undefined)

/** What a pass over all below `compacted` leaves, and where tombstones below `horizon` may go. */
function compact(events, compacted, horizon) {
  const last = new Map(events.slice(0, compacted).map((event, at) => [keyOf(event), at]))
  return events.filter((event, at) => {
    if (at >= compacted || keyOf(event) === undefined) return true
    return last.get(keyOf(event)) === at && !(at < horizon && event.headers.operation === "delete")
  })
}

async function write(events) {
  const url = `${process.env.BASE_URL}/v1/stream/compacted-${crypto.randomUUID()}`
  const stream = await DurableStream.create({ url, contentType: "application/json" })
  for (let at = 0; at < events.length; at += 40) {
    await Promise.all(events.slice(at, at + 40).map((event) => stream.append(JSON.stringify(event))))
  }
  return stream
}

async function collect(stream) {
  const db = createStreamDB({ stream, state })
  await db.preload()
  const rows = Object.entries(db.collections).map(([name, collection]) => {
    const inOrder = collection.toArray.sort((one, other) => one._seq - other._seq)
    return [name, inOrder.map(({ id, number, tags }) => ({ id, number, tags }))]
  })
  db.close()
  return Object.fromEntries(rows)
}

async function materialize(stream) {
  const made = new MaterializedState()
  const response = await stream.stream({ live: false })
  for (const event of await response.json()) if (event.headers.operation) made.apply(event)
  return ["user", "note"].map((type) => new Map([...made.getType(type)].sort()))
}

for (let round = 0; round < 12; round++) {
  const events = Array.from({ length: 5 + below(120) }, (_, number) => randomChange(number))
  events.splice(below(events.length), 0, { headers: { control: "snapshot-end" } }) // It has no key.
  const whole = await write(events)
  const expected = [await collect(whole), await materialize(whole)]
  const compacted = below(events.length + 1)
  for (const horizon of [0, below(compacted + 1), compacted]) {
    const left = await write(compact(events, compacted, horizon))
    assert.deepEqual([await collect(left), await materialize(left)], expected, `round ${round}, horizon ${horizon}`)
  }
}
process.exit(0)
