// The registry of streams, read as upstream's test UI reads it: @durable-streams/state with TanStack DB, the UI's
// own schema, and its order of calls (HEAD, a creation where there is none, then the live collection).
import assert from "node:assert/strict"
import { DurableStream } from "@durable-streams/client"
import { createStateSchema } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"

const root = `${process.env.BASE_URL}/v1/stream/`
const url = `${root}__registry__`
const run = crypto.randomUUID()
const text = { contentType: "text/plain" }
const COMPACT = JSON.parse(process.env.COMPACT ?? "{}")

const validate = (value) => {
  if (typeof value.path !== "string" || value.path === "") return { issues: [{ message: "path" }] }
  if (typeof value.contentType !== "string" || value.contentType === "") return { issues: [{ message: "contentType" }] }
  if (typeof value.createdAt !== "number") return { issues: [{ message: "createdAt" }] }
  return { value }
}
const metadata = { "~standard": { version: 1, vendor: "durable-streams", validate } }
const schema = createStateSchema({ streams: { schema: metadata, type: "stream", primaryKey: "path" } })

const until = async (condition) => {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 20))
}

await DurableStream.create({ url: `${root}${run}/older`, ...text })
assert.equal((await new DurableStream({ url }).head()).exists, false)
await DurableStream.create({ url, contentType: "application/json", headers: COMPACT })
const db = createStreamDB({ streamOptions: { url, contentType: "application/json" }, state: schema })
await db.preload()
const streams = db.collections.streams

// What was there before the registry is listed when it is created.
await until(() => streams.get(`${run}/older`))

const chat = `${run}/chat%20%C3%A9`
const before = Date.now()
const stream = await DurableStream.create({ url: root + chat, ...text })
await until(() => streams.get(chat))
const listed = streams.get(chat)
assert.equal(listed.contentType, "text/plain")
assert.ok(listed.createdAt >= before - 60_000 && listed.createdAt <= Date.now() + 60_000)

await stream.append("the end")
await stream.close()
await until(() => streams.get(chat).closed)

await stream.delete()
await until(() => !streams.get(chat))
await DurableStream.create({ url: root + chat, contentType: "application/json" })
await until(() => streams.get(chat)?.contentType === "application/json")
assert.equal(streams.get(chat).closed, undefined)

// A stream that takes no messages and ends by itself is told as well.
await DurableStream.create({ url: `${root}${run}/short`, ...text, ttlSeconds: 1 })
await until(() => streams.get(`${run}/short`))
assert.equal(streams.get("__registry__"), undefined)

// A second reader that comes later sees the same, also of what is compacted.
const head = async () => (await fetch(url, { method: "HEAD" })).headers
while (COMPACT["Stream-Compact"] && !(await head()).has("Stream-Compacted-Offset")) {
  await new Promise((resolve) => setTimeout(resolve, 200))
}
const later = createStreamDB({ streamOptions: { url, contentType: "application/json" }, live: "long-poll", state: schema })
await later.preload()
assert.deepEqual([...later.collections.streams.keys()].sort(), [...streams.keys()].sort())
later.close()
db.close()
process.exit(0)
