// Slow readers with the official npm client, which reads one answer ahead of its caller: the last message and the close,
// which come in one append, are there while an earlier message is still in hand.
// Environment: BASE_URL of a server, or ANSWER, a URL whose stream somebody else writes, and WHOLE, the text of it.
// Ends with 0 if each reader has each message, and with the text that each reader has on stderr if not.
import assert from "node:assert/strict"
import { randomUUID } from "node:crypto"
import { setTimeout as pause } from "node:timers/promises"
import { DurableStream, stream } from "@durable-streams/client"
import { socketFetch } from "../../../shared/tidemark/console/socket.js"

const { BASE_URL, ANSWER, WHOLE } = process.env
const LIMIT_MS = 90_000
const TEXT_READERS = ["bodyStream", "textStream", "subscribeBytes", "subscribeText"]
const JSON_READERS = ANSWER ? [] : ["jsonStream", "subscribeJson"]
const MESSAGES = ["10", "20", "30", "40", "50"]
const SLOW_MS = ANSWER ? 120 : 30

const textOf = (piece) => (piece instanceof Uint8Array ? new TextDecoder().decode(piece) : [piece].flat().join(""))

// What comes until the reader ends, or says that the stream is closed. `whileBusy` runs while a piece is in hand.
async function readAll(response, reader, whileBusy) {
  let got = ""
  const take = async (piece) => {
    got += textOf(piece)
    await whileBusy()
  }
  if (reader.endsWith("Stream")) {
    for await (const piece of response[reader]()) await take(piece)
    return got
  }
  await new Promise((resolve, reject) => {
    response[reader](async ({ text, data, items, streamClosed }) => {
      await take(text ?? data ?? items)
      if (streamClosed) resolve()
    })
    response.closed.then(resolve, reject)
  })
  return got
}

async function writer(isJson) {
  const url = `${BASE_URL}/v1/stream/slow-${randomUUID()}`
  const handle = await DurableStream.create({ url, contentType: isJson ? "application/json" : "text/plain", body: MESSAGES[0] })
  const write = async () => {
    for (const each of MESSAGES.slice(1, -1)) {
      await handle.append(each)
      await pause(SLOW_MS) // An event of its own.
    }
    await handle.close({ body: MESSAGES.at(-1) })
  }
  return { url, write }
}

async function slowlyRead(reader, way) {
  const { url, write } = ANSWER ? { url: ANSWER, write: () => {} } : await writer(JSON_READERS.includes(reader))
  const response = await stream({ url, offset: "-1", ...way })
  let written
  return readAll(response, reader, async () => {
    await (written ??= write())
    await pause(SLOW_MS)
  })
}

setTimeout(() => {
  console.error(`not done after ${LIMIT_MS} ms`)
  process.exit(1)
}, LIMIT_MS)
// A plain long-poll has the close in the header of its data: the protocol asks for it (section 5.6).
const ways = { events: { live: "sse" }, socketFetch: { live: "long-poll", fetch: socketFetch } }
const cases = Object.keys(ways).flatMap((way) => [...TEXT_READERS, ...JSON_READERS].map((reader) => [reader, way]))
const got = await Promise.all(cases.map(([reader, way]) => slowlyRead(reader, ways[way])))
const all = (each) => Object.fromEntries(cases.map(([reader, way], at) => [`${way} ${reader}`, each(at)]))
assert.deepEqual(all((at) => got[at]), all(() => WHOLE ?? MESSAGES.join("")))
process.exit(0)
