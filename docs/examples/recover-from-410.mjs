// A reader that survives retention: when its offset is gone (410), it starts over from bootstrap and tails on.
// With the official client (`@durable-streams/client`) and plain `fetch`.
//
//   BASE_URL=http://127.0.0.1:4437 node docs/examples/recover-from-410.mjs
import assert from "node:assert/strict"
import { randomUUID } from "node:crypto"
import { DurableStream, stream } from "@durable-streams/client"

/** The document is an object; an edit sets one of its keys. */
const apply = (document, edit) => ({ ...document, [edit.set]: edit.value })

/** The parts of a multipart body, as bytes. */
function splitParts(contentType, body) {
  const boundary = /boundary="?([^";]+)"?/.exec(contentType)[1]
  const delimiter = Buffer.from(`\r\n--${boundary}`)
  const bytes = Buffer.concat([Buffer.from("\r\n"), body])
  const parts = []
  let from = bytes.indexOf(delimiter) + delimiter.length
  for (let to; (to = bytes.indexOf(delimiter, from)) !== -1; from = to + delimiter.length) {
    const section = bytes.subarray(from, to)
    const head = section.indexOf("\r\n\r\n")
    const headers = new Headers(section.subarray(2, head).toString().split("\r\n").map((line) => line.split(/:\s*/, 2)))
    parts.push({ headers, body: section.subarray(head + 4) })
  }
  return parts
}

/** The document as it is now, and the offset to read on from. */
async function bootstrap(url) {
  // A snapshot too large for an answer is a redirect; its headers are read before it is followed.
  const answer = await fetch(`${url}/bootstrap`, { redirect: "manual" })
  const location = answer.status === 307 ? answer.headers.get("Location") : null
  const content = location ? await fetch(location) : answer
  if (!content.ok) throw new Error(`bootstrap: ${content.status}`)
  const parts = splitParts(content.headers.get("Content-Type"), Buffer.from(await content.arrayBuffer()))
  const [snapshot, ...updates] = parts
  const hasSnapshot = answer.headers.get("Stream-Snapshot-Offset") !== "-1"
  const document = hasSnapshot ? JSON.parse(snapshot.body) : {}
  return {
    document: updates.map((part) => JSON.parse(part.body)).reduce(apply, document),
    offset: answer.headers.get("Stream-Next-Offset"),
  }
}

/** Everything up to the tail, from wherever the reader was; -1 for one that is new. */
async function catchUp(url, state) {
  try {
    const response = await stream({ url, offset: state.offset, live: false })
    const edits = await response.json()
    return { document: edits.reduce(apply, state.document), offset: response.offset }
  } catch (error) {
    if (error.status !== 410) throw error
    console.log(`  ${state.offset} is gone: starting over from bootstrap`)
    return bootstrap(url)
  }
}

/** Follows the stream until `done` says that the document is as wanted. */
async function tail(url, state, done) {
  const response = await stream({ url, offset: state.offset, live: "sse" })
  return new Promise((resolve) => {
    const stop = response.subscribeJson((batch) => {
      state = { document: batch.items.reduce(apply, state.document), offset: batch.offset }
      if (done(state.document)) {
        stop()
        resolve(state)
      }
    })
  })
}

const bucket = `${process.env.BASE_URL}/docs-${randomUUID().slice(0, 8)}`
const url = `${bucket}/report`
assert.equal((await fetch(bucket, { method: "PUT" })).status, 201)
const writer = await DurableStream.create({ url, contentType: "application/json" })
await writer.append(JSON.stringify({ set: "title", value: "Tides" }))
await writer.append(JSON.stringify({ set: "author", value: "nobody yet" }))

let reader = await catchUp(url, { document: {}, offset: "-1" })
console.log("a reader at", reader.offset, reader.document)

await writer.append(JSON.stringify({ set: "author", value: "Ada" }))
const folded = await catchUp(url, reader)
await writer.append(JSON.stringify({ set: "status", value: "draft" }))
const published = await fetch(`${url}/snapshot/${encodeURIComponent(folded.offset)}`, {
  method: "PUT",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(folded.document),
})
assert.equal(published.status, 204)
console.log("a snapshot at", folded.offset)

reader = await catchUp(url, reader)
assert.deepEqual(reader.document, { title: "Tides", author: "Ada", status: "draft" })
console.log("the reader at", reader.offset, reader.document)

const following = tail(url, reader, (document) => document.status === "final")
await writer.append(JSON.stringify({ set: "status", value: "final" }))
reader = await following
assert.deepEqual(reader.document, { title: "Tides", author: "Ada", status: "final" })
console.log("and, tailing, at", reader.offset, reader.document)
process.exit(0)
