// @durable-streams/state: a stream of changes as collections that a program queries (TanStack DB).
import assert from "node:assert/strict"
import { DurableStream } from "@durable-streams/client"
import { createStateSchema, MaterializedState } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"

const url = `${process.env.BASE_URL}/v1/stream/state-${crypto.randomUUID()}`
const anything = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } }
const schema = createStateSchema({ users: { schema: anything, type: "user", primaryKey: "id" } })

const stream = await DurableStream.create({ url, contentType: "application/json" })
const append = (event) => stream.append(JSON.stringify(event))
await append(schema.users.insert({ value: { id: "1", name: "Ada" } }))
await append(schema.users.insert({ value: { id: "2", name: "Grace" } }))
await append(schema.users.update({ value: { id: "1", name: "Ada L." } }))

const state = new MaterializedState()
const response = await stream.stream({ live: false })
for (const event of await response.json()) state.apply(event)
assert.deepEqual(state.get("user", "1"), { id: "1", name: "Ada L." })

for (const live of ["sse", "long-poll"]) {
  const db = createStreamDB({ streamOptions: { url, contentType: "application/json" }, live, state: schema })
  await db.preload()
  assert.equal(db.collections.users.get("1").name, "Ada L.")
  const id = `live ${live}`
  await append(schema.users.insert({ value: { id, name: "Later" } }))
  while (!db.collections.users.get(id)) await new Promise((resolve) => setTimeout(resolve, 20))
  await append(schema.users.delete({ key: id, oldValue: { id, name: "Later" } }))
  while (db.collections.users.get(id)) await new Promise((resolve) => setTimeout(resolve, 20))
  db.close()
}
process.exit(0)
