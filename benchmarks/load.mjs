// The load generator: `node load.mjs <port> <row> <options as JSON>` prints the measures of one run as JSON.
// It knows nothing of which server it talks to. Every row is bounded in count or in time.
import http from "node:http"
import { randomUUID } from "node:crypto"
import { setTimeout as pause } from "node:timers/promises"
import { Connection, header, request } from "./wire.mjs"

const [port, row, options] = [Number(process.argv[2]), process.argv[3], JSON.parse(process.argv[4] ?? "{}")]
const JSON_TYPE = { "content-type": "application/json" }
const MESSAGE_BYTES = 100
const LIMIT_MS = 120_000

const streamPath = (name) => `/v1/stream/${name}`
const newStream = () => streamPath(`bench-${randomUUID()}`)

// Words in no order, the same in every run: a body that shrinks as people's JSON does.
const TEXT = (() => {
  const words = (
    "the stream is read from an offset and next message comes when it was written so nothing " +
    "needs asking for twice while tool call returns rows with names prices dates which model puts into words"
  ).split(/\s+/)
  let seed = 1
  let text = ""
  while (text.length < 1 << 16) {
    seed = (seed * 48271) % 0x7fffffff
    text += seed % 4 ? words[seed % words.length] + " " : seed.toString(36) + " "
  }
  return text
})()

/** A JSON message of exactly 100 bytes that carries its number. */
function message(number) {
  const start = `{"n":${number},"text":"`
  const from = (number * MESSAGE_BYTES) % (TEXT.length - MESSAGE_BYTES)
  return `${start}${TEXT.substr(from, MESSAGE_BYTES - start.length - 2)}"}`
}

function percentile(values, share) {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]
}

function latencies(values) {
  return { p50_ms: percentile(values, 0.5), p99_ms: percentile(values, 0.99), count: values.length }
}

function wanted(answer, ...statuses) {
  if (statuses.includes(answer.status)) return answer
  throw new Error(`status ${answer.status} instead of ${statuses.join(" or ")}: ${answer.body.toString("latin1", 0, 300)}`)
}

async function create(path, headers = JSON_TYPE) {
  const connection = await Connection.open(port)
  wanted(await connection.send(request("PUT", path, headers)), 200, 201)
  connection.close()
  return path
}

/**
 * The first append to a stream. When many streams begin at once, the reference server now and then answers it with
 * 404, and has sometimes appended all the same. Resolves with the number of such answers.
 */
async function firstAppend(connection, path) {
  for (let attempt = 0; attempt < 100; attempt++) {
    const answer = await connection.send(request("POST", path, JSON_TYPE, message(0)))
    if (answer.status !== 404) return wanted(answer, 200, 204) && attempt
    await pause(10)
  }
  throw new Error(`404 for a second after the creation of ${path}`)
}

async function append(connection, path, body, headers = JSON_TYPE) {
  return wanted(await connection.send(request("POST", path, headers, body)), 200, 204)
}

/** Reads from the start, page after page, until the server says that this is all. Resolves with the pages' bytes. */
async function readPages(path, onBytes) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
  let offset = "-1"
  for (let page = 0; page < 10_000; page++) {
    const answer = await get(agent, `${path}?offset=${offset}`, onBytes)
    if (answer["stream-up-to-date"] === "true") break
    offset = answer["stream-next-offset"]
  }
  agent.destroy()
}

function get(agent, path, onBytes) {
  return new Promise((resolve, reject) => {
    const sent = http.get({ host: "127.0.0.1", port, path, agent }, (answer) => {
      if (answer.statusCode !== 200) reject(new Error(`GET ${path}: ${answer.statusCode}`))
      answer.on("data", onBytes).on("end", () => resolve(answer.headers)).on("error", reject)
    })
    sent.on("error", reject)
  })
}

/** How many messages are in the stream: what was acknowledged must be there, or the rate means nothing. */
async function countMessages(path) {
  let count = 0
  let carried = ""
  await readPages(path, (bytes) => {
    const text = carried + bytes.latin1Slice()
    count += text.split('{"n":').length - 1
    // A mark cut in two by the chunk's end is counted with the next chunk; a whole one must not be counted again.
    carried = /\{("(n("(:)?)?)?)?$/.exec(text)?.[0] ?? ""
    if (carried === '{"n":') carried = ""
  })
  return count
}

async function sequential({ count, seconds }) {
  const path = await create(newStream())
  const connection = await Connection.open(port)
  for (let n = 0; n < 50; n++) await append(connection, path, message(n))
  const times = []
  const start = performance.now()
  for (let n = 0; n < count && performance.now() - start < seconds * 1000; n++) {
    const sent = performance.now()
    await append(connection, path, message(n))
    times.push(performance.now() - sent)
  }
  const elapsed = performance.now() - start
  connection.close()
  return { ...latencies(times), per_second: (times.length / elapsed) * 1000 }
}

async function fan({ clients, streams, seconds }) {
  const paths = await Promise.all(Array.from({ length: streams }, () => create(newStream())))
  const connections = await Promise.all(Array.from({ length: clients }, () => Connection.open(port)))
  const appendOne = (n, client) => append(connections[client], paths[client % streams], message(n))
  const begin = (connection, client) => firstAppend(connection, paths[client % streams])
  const unsure = (await Promise.all(connections.map(begin))).reduce((sum, each) => sum + each, 0)
  let acknowledged = 0
  const start = performance.now()
  const writer = async (_, client) => {
    for (let n = 1; performance.now() - start < seconds * 1000; n++) {
      await appendOne(n, client)
      acknowledged++
    }
  }
  await Promise.all(connections.map(writer))
  const elapsed = performance.now() - start
  connections.forEach((connection) => connection.close())
  let found = 0
  for (const path of paths) found += await countMessages(path)
  const sure = acknowledged + clients
  if (found < sure || found > sure + unsure) throw new Error(`${sure} acknowledged, ${found} read back`)
  return { per_second: (acknowledged / elapsed) * 1000, count: acknowledged }
}

async function fillBinary({ name, pieces, piece_bytes }) {
  const type = { "content-type": "application/octet-stream" }
  const path = await create(streamPath(name), type)
  const connection = await Connection.open(port)
  const body = Array.from({ length: piece_bytes }, (_, n) => String.fromCharCode((n * 31) % 251)).join("")
  for (let n = 0; n < pieces; n++) await append(connection, path, body, type)
  connection.close()
  return { bytes: pieces * piece_bytes }
}

async function fillJson({ name, appends, messages, rest_seconds = 0 }) {
  const path = await create(streamPath(name))
  const connection = await Connection.open(port)
  const body = `[${Array.from({ length: messages }, (_, n) => message(n)).join(",")}]`
  for (let n = 0; n < appends; n++) await append(connection, path, body)
  connection.close()
  await pause(rest_seconds * 1000)
  return { messages: appends * messages }
}

async function catchUp({ name, at_least_bytes, times }) {
  const rates = []
  for (let n = 0; n < times; n++) {
    let bytes = 0
    const start = performance.now()
    await readPages(streamPath(name), (chunk) => (bytes += chunk.length))
    rates.push(bytes / 1000 / (performance.now() - start))
    if (bytes < at_least_bytes) throw new Error(`${bytes} bytes read, at least ${at_least_bytes} expected`)
  }
  return { mb_per_second: percentile(rates, 0.5), count: times }
}

/** Long-polls once more after every timeout, and resolves with the tail's new offset when data has come. */
async function waitForData(connection, path, from) {
  let [offset, cursor] = [from, ""]
  for (let round = 0; round < 100; round++) {
    const query = `?offset=${offset}&live=long-poll${cursor && `&cursor=${cursor}`}`
    const answer = wanted(await connection.send(request("GET", path + query)), 200, 204)
    offset = header(answer.head, "stream-next-offset")
    cursor = header(answer.head, "stream-cursor") ?? ""
    if (answer.status === 200 && answer.body.length > 2) return offset
  }
  throw new Error("no data in 100 long-polls")
}

/** Rounds of: all readers wait, one append, all have it. Resolves with the time to the last reader of each round. */
async function readers({ readers: count, rounds, settle_ms }) {
  const path = await create(newStream())
  const writer = await Connection.open(port)
  let offset = header((await append(writer, path, message(0))).head, "stream-next-offset")
  const waiting = await Promise.all(Array.from({ length: count }, () => Connection.open(port)))
  const times = []
  for (let round = 0; round < rounds; round++) {
    const received = waiting.map((reader) => waitForData(reader, path, offset))
    await pause(settle_ms)
    const sent = performance.now()
    const appended = append(writer, path, message(round))
    const offsets = await Promise.all(received)
    times.push(performance.now() - sent)
    offset = header((await appended).head, "stream-next-offset")
    if (offsets.some((each) => each !== offset)) throw new Error("a reader was woken with less than the append")
  }
  ;[writer, ...waiting].forEach((connection) => connection.close())
  return latencies(times)
}

/** One SSE reader that reconnects where the last control event left it; `arrival(mark)` resolves when the text came. */
class EventReader {
  #wanted = null
  #text = ""
  #closed = false
  answers = 0

  constructor(path, offset) {
    this.path = path
    this.offset = offset
  }

  async run() {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
    while (!this.#closed) {
      await get(agent, `${this.path}?offset=${this.offset}&live=sse`, (bytes) => this.#receive(bytes))
      this.answers++
    }
    agent.destroy()
  }

  arrival(mark) {
    return new Promise((resolve) => (this.#wanted = { mark, resolve }))
  }

  close() {
    this.#closed = true
  }

  #receive(bytes) {
    this.#text += bytes.latin1Slice()
    for (const control of this.#text.matchAll(/"streamNextOffset":"([^"]+)"/g)) this.offset = control[1]
    if (this.#wanted !== null && this.#text.includes(this.#wanted.mark)) {
      this.#wanted.resolve()
      this.#wanted = null
    }
    this.#text = this.#text.slice(-4 * MESSAGE_BYTES)
  }
}

async function sse({ count, settle_ms }) {
  const path = await create(newStream())
  const writer = await Connection.open(port)
  const start = header((await append(writer, path, message(0))).head, "stream-next-offset")
  const reader = new EventReader(path, start)
  const broken = reader.run()
  await pause(500)
  const times = []
  for (let n = 1; n <= count; n++) {
    const arrived = reader.arrival(`{"n":${n},`)
    const sent = performance.now()
    await append(writer, path, message(n))
    await Promise.race([arrived, broken])
    times.push(performance.now() - sent)
    await pause(settle_ms)
  }
  reader.close()
  writer.close()
  return { ...latencies(times), answers: reader.answers }
}

const rows = { sequential, fan, fillBinary, fillJson, catchUp, readers, sse }

setTimeout(() => {
  console.error(`not done after ${LIMIT_MS} ms`)
  process.exit(1)
}, LIMIT_MS).unref()

// The open event stream of the SSE row would keep the process alive, so it ends itself.
rows[row](options).then(
  (measures) => process.stdout.write(JSON.stringify(measures), () => process.exit(0)),
  (error) => {
    console.error(error.message)
    process.exit(1)
  }
)
