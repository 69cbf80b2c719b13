// Copies a stream from one Durable Streams server to another, for example from the reference server to Tidemark.
//
//     FROM=http://127.0.0.1:4438/v1/stream/events TO=http://127.0.0.1:4437/v1/stream/events node docs/examples/copy-stream.mjs
//
// Nobody may write to the source meanwhile. It can be started again after it was cut off: the pieces are cut in the
// same places, and what the target has already it does not write twice. TOKEN is the target's bearer token.
const { FROM, TO, TOKEN } = process.env
const PIECE_BYTES = 1 << 20
const authorization = TOKEN ? { Authorization: `Bearer ${TOKEN}` } : {}

async function ask(url, options = {}) {
  const response = await fetch(url, { ...options, headers: { ...authorization, ...options.headers } })
  if (!response.ok) throw new Error(`${options.method ?? "GET"} ${url}: ${response.status} ${await response.text()}`)
  return response
}

async function read(url, options) {
  const response = await fetch(url, options)
  if (!response.ok) throw new Error(`${url}: ${response.status} ${await response.text()}`)
  return response
}

/** All of the source, in pieces of about a megabyte: JSON arrays, or bytes. */
async function* pieces(isJson) {
  for (let offset = "-1", last = false; !last; ) {
    const page = await read(`${FROM}?offset=${encodeURIComponent(offset)}`)
    offset = page.headers.get("Stream-Next-Offset")
    last = page.headers.has("Stream-Up-To-Date")
    if (isJson) {
      let piece = []
      let size = 0
      for (const message of await page.json()) {
        const text = JSON.stringify(message)
        if (size + text.length > PIECE_BYTES) {
          yield `[${piece.join()}]`
          ;[piece, size] = [[], 0]
        }
        piece.push(text)
        size += text.length
      }
      if (piece.length) yield `[${piece.join()}]`
    } else {
      const bytes = new Uint8Array(await page.arrayBuffer())
      for (let at = 0; at < bytes.length; at += PIECE_BYTES) yield bytes.subarray(at, at + PIECE_BYTES)
    }
  }
}

const source = (await read(FROM, { method: "HEAD" })).headers
const type = source.get("Content-Type")
const expiry = Object.fromEntries(
  ["Stream-TTL", "Stream-Expires-At"].filter((name) => source.has(name)).map((name) => [name, source.get(name)]),
)
const target = await fetch(TO, { method: "HEAD", headers: authorization })
if (target.status === 404) await ask(TO, { method: "PUT", headers: { "Content-Type": type, ...expiry } })
if (target.headers.get("Stream-Closed") === "true") {
  console.log("the copy is complete already")
  process.exit(0)
}

let seq = 0
const producer = () => ({ "Producer-Id": "copy-stream", "Producer-Epoch": "0", "Producer-Seq": String(seq++) })
for await (const body of pieces(type.startsWith("application/json")))
  await ask(TO, { method: "POST", body, headers: { "Content-Type": type, ...producer() } })
if (source.get("Stream-Closed") === "true")
  await ask(TO, { method: "POST", headers: { "Stream-Closed": "true", ...producer() } })

const tail = (await ask(TO, { method: "HEAD" })).headers.get("Stream-Next-Offset")
console.log(`${seq} requests, the copy's tail is ${tail}`)
