// `/v1/socket.js` against a WebSocket and a server that do what each test says, with the clock in the test's hands.
import assert from "node:assert/strict"
import { getEventListeners } from "node:events"
import { beforeEach, mock, test } from "node:test"
import { makeSocketFetch } from "../../shared/tidemark/console/socket.js"

const ORIGIN = "https://tides.example"
const offset = (number) => String(number).padStart(16, "0")
const settle = async () => {
  for (let turn = 0; turn < 50; turn++) await null
}

class FakeWebSocket {
  static OPEN = 1
  static all = []
  static get last() {
    return FakeWebSocket.all.at(-1)
  }

  constructor(url) {
    Object.assign(this, { url: String(url), sent: [], readyState: 0 })
    FakeWebSocket.all.push(this)
  }

  send(text) {
    assert.equal(this.readyState, 1)
    assert.ok(text.length <= 32 * 1024)
    this.sent.push(JSON.parse(text))
  }

  open() {
    this.readyState = 1
    this.onopen()
  }

  tell(...messages) {
    this.onmessage({ data: JSON.stringify(messages.length === 1 ? messages[0] : messages) })
    return settle()
  }

  close() {
    this.readyState = 3
    this.onclose()
  }

  get watched() {
    return this.sent.flatMap((each) => each.watch ?? [])
  }
}

const PING = { action: "ping" }

let requests, answers, socketFetch, listeners

// Each stream's answer is its tail; `answers` has others, by the address without the origin.
async function server(input, init) {
  const address = new URL(input.url ?? input)
  const asked = address.pathname + address.search
  requests.push({ asked, init })
  init?.signal?.throwIfAborted()
  const answer = await answers[asked]
  return answer ?? Response.json({ error: "none" }, { status: 404 })
}

const found = (next, headers = { "Stream-Up-To-Date": "true" }) => new Response("", { headers: { "Stream-Next-Offset": offset(next), ...headers } })
const asked = () => requests.map((each) => each.asked).filter((each) => each !== "/v1/socket")
const poll = (path, from, init) => socketFetch(`${ORIGIN}${path}?offset=${offset(from)}&cursor=7&live=long-poll`, init)
const plain = (path, from) => `${path}?offset=${offset(from)}&cursor=7`
const live = (path, from) => `${plain(path, from)}&live=long-poll`

beforeEach(() => {
  mock.timers.reset()
  mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"] })
  globalThis.WebSocket = FakeWebSocket
  FakeWebSocket.all = []
  delete globalThis.document
  listeners = {}
  globalThis.addEventListener = (name, listener) => (listeners[name] = listener)
  requests = []
  answers = { "/v1/socket": Promise.resolve().then(() => Response.json({ url: "/v1/socket" })) }
  socketFetch = makeSocketFetch({ fetch: server })
})

async function pass(ms) {
  await settle()
  mock.timers.tick(ms)
  await settle()
}

// The mocked clock stands at the end of a step while its timers fire.
async function idle(seconds) {
  for (let second = 0; second < seconds; second++) await pass(1000)
}

// The socket is open, and what is asked for by then is watched.
async function opened() {
  await pass(0)
  FakeWebSocket.last.open()
  assert.deepEqual(FakeWebSocket.last.sent.shift(), PING, "to learn whether it is answered")
  await pass(10)
  return FakeWebSocket.last
}

// And its server answers pings.
async function guarded() {
  const reader = poll("/v1/stream/a", 5)
  const socket = await opened()
  socket.onmessage({ data: "[]" })
  await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
  return { reader, socket }
}

async function isPending(promise) {
  await settle()
  return (await Promise.race([promise, "pending"])) === "pending"
}

test("a reader at the tail makes no request until it is told of more", async () => {
  const reader = poll("/v1/stream/a", 5)
  const socket = await opened()
  assert.equal(socket.url, "wss://tides.example/v1/socket")
  assert.deepEqual(socket.sent, [{ watch: ["/v1/stream/a"], data: true }])
  await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
  assert.ok(await isPending(reader))
  assert.deepEqual(asked(), [])
  answers[plain("/v1/stream/a", 5)] = found(9)
  await socket.tell({ stream: "/v1/stream/a", offset: offset(9) })
  assert.equal((await reader).headers.get("Stream-Next-Offset"), offset(9))
  assert.deepEqual(asked(), [plain("/v1/stream/a", 5)])
  assert.ok(await isPending(poll("/v1/stream/a", 9)))
  assert.equal(socket.sent.length, 1, "it is watched already")
  assert.equal(asked().length, 1)
})

const page = (from, end, data, more) => ({
  stream: "/v1/stream/a",
  offset: offset(end),
  from: offset(from),
  type: "text/plain",
  etag: `"x:${from}:${end}"`,
  cursor: 2 ** 40 + 7,
  data,
  ...more,
})

test("data that comes with a message is the answer, as the server's own, without a request", async () => {
  const reader = poll("/v1/stream/a", 5)
  const socket = await opened()
  await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
  await socket.tell(page(5, 8, "[1]", { type: "application/json" }), page(8, 10, "AP8=", { encoding: "base64" }))
  const answer = await reader
  assert.deepEqual([answer.status, Object.fromEntries(answer.headers)], [
    200,
    { "content-type": "application/json", etag: '"x:5:8"', "stream-cursor": "7", "stream-next-offset": offset(8), "stream-up-to-date": "true" },
  ])
  assert.equal(await answer.text(), "[1]")
  const next = await poll("/v1/stream/a", 8)
  assert.deepEqual([...new Uint8Array(await next.arrayBuffer())], [0, 255])
  const last = poll("/v1/stream/a", 10)
  assert.ok(await isPending(last))
  await socket.tell(page(10, 10, "", { closed: true }))
  const { status, headers } = await last
  assert.deepEqual([status, headers.get("Stream-Closed"), headers.get("Stream-Cursor")], [204, "true", null])
  assert.deepEqual(asked(), [])
})

test("data of another stream with the name are read by a request, which is refused", async () => {
  const reader = poll("/v1/stream/a", 5)
  const socket = await opened()
  answers[plain("/v1/stream/a", 5)] = Response.json({ error: "another stream" }, { status: 410 })
  await socket.tell(page(5, 8, "new", { cursor: 2 ** 40 + 8 }))
  assert.equal((await reader).status, 410)
})

test("a reader without a cursor gets that of the stream", async () => {
  const reader = socketFetch(`${ORIGIN}/v1/stream/a?offset=${offset(5)}&live=long-poll`)
  const socket = await opened()
  await socket.tell(page(5, 8, "x"))
  assert.equal((await reader).headers.get("Stream-Cursor"), String(2 ** 40 + 7))
})

for (const [what, told] of [
  ["before", page(4, 9, "early")],
  ["behind", page(6, 9, "late")],
])
  test(`data that begin ${what} what was read are read by a request`, async () => {
    const reader = poll("/v1/stream/a", 5)
    const socket = await opened()
    answers[plain("/v1/stream/a", 5)] = found(9)
    await socket.tell(told)
    assert.equal((await reader).headers.get("Stream-Next-Offset"), offset(9))
    assert.equal(asked().length, 1)
  })

test("data go to readers with the token of the watch alone", async () => {
  poll("/v1/stream/a", 5, { headers: { Authorization: "Bearer one" } })
  const socket = await opened()
  await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
  await socket.tell(page(5, 8, "secret"))
  answers[plain("/v1/stream/a", 5)] = Response.json({ error: "none" }, { status: 404 })
  assert.equal((await poll("/v1/stream/a", 5, { headers: { Authorization: "Bearer two" } })).status, 404)
})

test("what came before the watch began is read at once", async () => {
  const reader = poll("/v1/stream/a", 5)
  const socket = await opened()
  answers[plain("/v1/stream/a", 5)] = found(9)
  await socket.tell({ stream: "/v1/stream/a", offset: offset(9), seconds: 3600 })
  assert.equal((await reader).status, 200)
})

test("the end of a stream is read, and its watch is over", async () => {
  const reader = poll("/v1/stream/a", 5)
  const socket = await opened()
  answers[plain("/v1/stream/a", 5)] = found(5, { "Stream-Up-To-Date": "true", "Stream-Closed": "true" })
  await socket.tell({ stream: "/v1/stream/a", offset: offset(5), closed: true })
  assert.equal((await reader).headers.get("Stream-Closed"), "true")
  await pass(1000)
  assert.equal(socket.readyState, 3, "nothing is watched any more")
})

for (const [what, bring] of [
  ["a message", (socket) => socket.tell(page(5, 9, "last", { closed: true }))],
  ["a read", (socket) => socket.tell({ stream: "/v1/stream/a", offset: offset(9), closed: true })],
  ["a long-poll", (socket) => socket.tell({ stream: "/v1/stream/a", status: 404 })],
])
  test(`a close that comes with data by ${what} is an answer of its own: a client that reads ahead ends at it`, async () => {
    const last = { "Stream-Up-To-Date": "true", "Stream-Closed": "true" }
    answers[plain("/v1/stream/a", 5)] = answers[live("/v1/stream/a", 5)] = new Response("last", { headers: { "Stream-Next-Offset": offset(9), ...last } })
    answers[plain("/v1/stream/a", 9)] = answers[live("/v1/stream/a", 9)] = found(9, last)
    const reader = poll("/v1/stream/a", 5)
    await bring(await opened())
    const data = await reader
    assert.deepEqual([await data.text(), data.headers.get("Stream-Next-Offset"), data.headers.has("Stream-Closed")], ["last", offset(9), false])
    const end = poll("/v1/stream/a", 9)
    await pass(10)
    await FakeWebSocket.last.tell({ stream: "/v1/stream/a", offset: offset(9), closed: true })
    assert.equal((await end).headers.get("Stream-Closed"), "true")
  })

test("wake-ups that overtake each other, come late or double hide nothing", async () => {
  const first = poll("/v1/stream/a", 5)
  const socket = await opened()
  answers[plain("/v1/stream/a", 5)] = found(6)
  await socket.tell({ stream: "/v1/stream/a", offset: offset(6), seconds: 3600 })
  await first
  await socket.tell({ stream: "/v1/stream/a", offset: offset(8) }, { stream: "/v1/stream/a", offset: offset(6) })
  answers[plain("/v1/stream/a", 6)] = found(8)
  assert.equal((await poll("/v1/stream/a", 6)).headers.get("Stream-Next-Offset"), offset(8))
  assert.ok(await isPending(poll("/v1/stream/a", 8)))
  assert.equal(asked().length, 2)
})

test("an answer of a cache that is older than the wake-up hides nothing", async () => {
  const first = poll("/v1/stream/a", 5)
  const socket = await opened()
  answers[plain("/v1/stream/a", 5)] = found(7)
  await socket.tell({ stream: "/v1/stream/a", offset: offset(9), seconds: 3600 })
  await first
  answers[plain("/v1/stream/a", 7)] = found(9)
  assert.equal((await poll("/v1/stream/a", 7)).headers.get("Stream-Next-Offset"), offset(9))
})

test("a reader that is ahead of the wake-ups waits after one read that finds nothing", async () => {
  const reader = poll("/v1/stream/a", 9)
  const socket = await opened()
  answers[plain("/v1/stream/a", 9)] = found(9)
  await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
  assert.ok(await isPending(reader))
  assert.equal(asked().length, 1)
  answers[plain("/v1/stream/a", 9)] = found(12)
  await socket.tell({ stream: "/v1/stream/a", offset: offset(12) })
  assert.equal((await reader).headers.get("Stream-Next-Offset"), offset(12))
})

test("a wake-up during a read that finds nothing is not lost", async () => {
  const reader = poll("/v1/stream/a", 5)
  const socket = await opened()
  let answer
  answers[plain("/v1/stream/a", 5)] = new Promise((resolve) => (answer = resolve))
  await socket.tell({ stream: "/v1/stream/a", offset: offset(3), seconds: 3600 })
  await socket.tell({ stream: "/v1/stream/a", offset: offset(9) })
  answers[plain("/v1/stream/a", 5)] = found(9)
  answer(found(5))
  assert.equal((await reader).headers.get("Stream-Next-Offset"), offset(9))
})

test("an abort ends the wait at once with its reason; the socket is closed when nobody is left", async () => {
  const [one, other] = [new AbortController(), new AbortController()]
  const readers = [poll("/v1/stream/a", 5, { signal: one.signal }), poll("/v1/stream/b", 5, { signal: other.signal })]
  const socket = await opened()
  await socket.tell(...["a", "b"].map((name) => ({ stream: `/v1/stream/${name}`, offset: offset(5), seconds: 3600 })))
  one.abort()
  await assert.rejects(readers[0], { name: "AbortError" })
  assert.equal(socket.readyState, 1)
  await socket.tell({ stream: "/v1/stream/a", offset: offset(7) })
  assert.deepEqual(socket.sent.at(-1), { unwatch: ["/v1/stream/a"] })
  other.abort("enough")
  await assert.rejects(readers[1], (reason) => reason === "enough")
  await pass(1000)
  assert.equal(socket.readyState, 3)
  await pass(600_000)
  assert.equal(FakeWebSocket.all.length, 1, "and it stays so")
  await assert.rejects(poll("/v1/stream/a", 5, { signal: AbortSignal.abort() }), { name: "AbortError" })
})

test("nobody who waits: no connection is made again, and no listener is left", async () => {
  const given = new AbortController()
  const reader = poll("/v1/stream/a", 5, { signal: given.signal })
  const socket = await opened()
  socket.close()
  await reader
  assert.deepEqual(getEventListeners(given.signal, "abort"), [])
  await pass(600_000)
  assert.equal(FakeWebSocket.all.length, 1)
})

test("a stream that nobody has waited on for a minute is not watched any more", async () => {
  const reader = poll("/v1/stream/a", 5)
  const socket = await opened()
  answers[plain("/v1/stream/a", 5)] = found(9)
  await socket.tell({ stream: "/v1/stream/a", offset: offset(9), seconds: 3600 })
  await reader
  await pass(60_000)
  await socket.tell({ stream: "/v1/stream/a", offset: offset(10) })
  assert.equal(socket.sent.length, 1)
  await pass(1)
  await socket.tell({ stream: "/v1/stream/a", offset: offset(11) })
  assert.deepEqual(socket.sent.at(-1), { unwatch: ["/v1/stream/a"] })
  await pass(1000)
  assert.equal(socket.readyState, 3)
})

test("another reader of a stream that one has left goes on", async () => {
  const leaving = new AbortController()
  const readers = [poll("/v1/stream/a", 5, { signal: leaving.signal }), poll("/v1/stream/a", 5)]
  const socket = await opened()
  await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
  leaving.abort()
  await assert.rejects(readers[0])
  assert.equal((await readers[1]).status, 204)
})

test("a reader that waited by another one's token reads with its newest", async () => {
  const pollWith = (token) => poll("/v1/stream/a", 5, { headers: { Authorization: `Bearer ${token}` } })
  const first = pollWith("first")
  const socket = await opened()
  await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
  const second = pollWith("second")
  assert.ok(await isPending(second))
  answers[plain("/v1/stream/a", 5)] = found(9)
  await socket.tell({ stream: "/v1/stream/a", offset: offset(9) })
  assert.deepEqual([(await first).status, (await second).status], [200, 204])
  assert.equal((await pollWith("third")).status, 200)
  assert.deepEqual(requests.slice(1).map((each) => each.init.headers.Authorization), ["Bearer first", "Bearer third"])
  assert.deepEqual(socket.watched, ["/v1/stream/a"])
})

test("before a lease ends the reader asks again, and its newest token goes with the watch", async () => {
  const reader = poll("/v1/stream/a", 5, { headers: { Authorization: "Bearer first" } })
  const socket = await opened()
  await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 10 })
  await pass(7000)
  assert.ok(await isPending(reader))
  await pass(1000)
  const answer = await reader
  assert.deepEqual([answer.status, ...["Stream-Next-Offset", "Stream-Up-To-Date"].map((name) => answer.headers.get(name))], [204, offset(5), "true"])
  poll("/v1/stream/a", 5, { headers: { Authorization: "Bearer second" } })
  await pass(10)
  assert.deepEqual(socket.sent, ["first", "second"].map((token) => ({ watch: ["/v1/stream/a"], token, data: true })))
  assert.deepEqual(asked(), [])
})

test("a stream that cannot be watched is asked for by the request itself", async () => {
  const init = { headers: { Authorization: "Bearer old" } }
  const reader = poll("/v1/stream/a", 5, init)
  const socket = await opened()
  answers[live("/v1/stream/a", 5)] = Response.json({ error: "expired" }, { status: 401 })
  await socket.tell({ stream: "/v1/stream/a", status: 401, error: "expired" })
  assert.equal((await reader).status, 401)
  assert.equal(requests.at(-1).init.headers, init.headers)
})

test("a frame that is refused leaves its streams to requests, and the others as they are", async () => {
  const known = poll("/v1/stream/a", 5)
  const socket = await opened()
  await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
  const refused = poll("/v1/stream/b", 5)
  await pass(10)
  answers[live("/v1/stream/b", 5)] = found(6)
  await socket.tell({ status: 400, error: "too many" })
  assert.equal((await refused).headers.get("Stream-Next-Offset"), offset(6))
  assert.ok(await isPending(known))
})

for (const text of ["{", "null", "7", "[null]"])
  test(`a message that says nothing of a stream begins all again by another connection: ${text}`, async () => {
    const reader = poll("/v1/stream/a", 5)
    const socket = await opened()
    socket.onmessage({ data: text })
    assert.equal(socket.readyState, 3)
    assert.equal((await reader).status, 204)
  })

test("a stream whose watch is not answered is asked for by the request itself", async () => {
  const readers = ["a", "b"].map((name) => poll(`/v1/stream/${name}`, 5))
  const socket = await opened()
  await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
  answers[live("/v1/stream/b", 5)] = found(6)
  await pass(30_000)
  assert.equal(socket.readyState, 3)
  assert.equal((await readers[0]).status, 204)
  assert.equal((await readers[1]).headers.get("Stream-Next-Offset"), offset(6))
})

test("after one socket by which nothing came requests wait, also of a page that is loaded again, until something comes", async () => {
  mock.method(Math, "random", () => 1)
  Object.defineProperty(globalThis, "sessionStorage", { value: {}, configurable: true, writable: true })
  const reader = poll("/v1/stream/a", 5)
  await opened()
  answers[live("/v1/stream/a", 5)] = found(6)
  await pass(30_000)
  assert.equal((await reader).headers.get("Stream-Next-Offset"), offset(6))
  for (const fetch of [socketFetch, makeSocketFetch({ fetch: server })]) {
    socketFetch = fetch
    requests = []
    answers[live("/v1/stream/a", 6)] = found(7)
    answers["/v1/socket"] = Response.json({ url: "/v1/socket" })
    assert.equal((await poll("/v1/stream/a", 6)).headers.get("Stream-Next-Offset"), offset(7))
    assert.deepEqual(asked(), [live("/v1/stream/a", 6)], "at once")
  }
  const last = poll("/v1/stream/b", 5)
  answers[live("/v1/stream/b", 5)] = new Promise(() => {})
  const socket = await opened()
  await socket.tell({ stream: "/v1/stream/b", offset: offset(5), seconds: 3600 })
  assert.deepEqual({ ...sessionStorage }, {})
  await socket.tell({ ...page(5, 8, "x"), stream: "/v1/stream/b" })
  assert.equal(await (await last).text(), "x")
  delete globalThis.sessionStorage
  mock.restoreAll()
})

test("a server that answers and ends the connection at once is asked less and less often", async () => {
  mock.method(Math, "random", () => 1)
  answers[live("/v1/stream/a", 5)] = found(5)
  for (const ms of [2000, 4000, 8000, 8000, 8000]) {
    poll("/v1/stream/a", 5)
    const socket = await opened()
    const count = FakeWebSocket.all.length
    await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
    socket.close()
    poll("/v1/stream/a", 5)
    await pass(ms - 1)
    assert.equal(FakeWebSocket.all.length, count)
    await pass(1)
    assert.equal(FakeWebSocket.all.length, count + 1)
  }
  mock.restoreAll()
})

test("a page that may open no socket long-polls", async () => {
  globalThis.WebSocket = class {
    static OPEN = 1

    constructor() {
      throw new DOMException("The operation is insecure", "SecurityError")
    }
  }
  answers[live("/v1/stream/a", 5)] = found(6)
  let answer
  for (let asks = 0; asks < 5; asks++) {
    const reader = poll("/v1/stream/a", 5)
    if (await isPending(reader)) await pass(8000)
    answer = await reader
  }
  assert.equal(answer.headers.get("Stream-Next-Offset"), offset(6))
})

test("a server that answers no ping gets one after eight minutes of silence, and is not given up", async () => {
  const left = new AbortController()
  poll("/v1/stream/b", 5, { signal: left.signal }).catch(() => {})
  poll("/v1/stream/a", 5)
  const socket = await opened()
  await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
  left.abort()
  await settle()
  await socket.tell({ stream: "/v1/stream/b", offset: offset(5), seconds: 3600 })
  socket.onmessage({ data: "[]" }) // So AWS answers `unwatch`, also before it answered pings.
  await idle(479)
  listeners.online()
  assert.deepEqual(socket.sent.slice(1), [{ unwatch: ["/v1/stream/b"] }])
  await idle(5)
  assert.deepEqual(socket.sent.slice(2), [PING])
  await idle(60)
  assert.equal(socket.readyState, 1)
})

test("a connection by which nothing comes is asked after a minute, and opened anew within 75 seconds", async () => {
  const { reader, socket } = await guarded()
  for (let pings = 1; pings < 4; pings++) {
    await idle(59)
    assert.equal(socket.sent.length, pings)
    await idle(6)
    assert.deepEqual(socket.sent.slice(1), Array(pings).fill(PING))
    if (pings < 3) socket.onmessage({ data: "[]" })
  }
  assert.equal(socket.readyState, 1)
  await idle(10)
  assert.equal(socket.readyState, 3)
  assert.equal((await reader).status, 204)
})

test("a page that pays by the ping may ask every eight minutes, and at once when it is online again", async () => {
  socketFetch = makeSocketFetch({ fetch: server, quietSeconds: 480 })
  const { socket } = await guarded()
  await idle(479)
  assert.equal(socket.sent.length, 1)
  await idle(5)
  assert.deepEqual(socket.sent.slice(1), [PING])
  socket.onmessage({ data: "[]" })
  listeners.online()
  assert.deepEqual(socket.sent.slice(1), [PING, PING])
  await pass(5000)
  assert.equal(socket.readyState, 3)
})

test("a hidden page asks every eight minutes alone, and at once when it is shown", async () => {
  const { socket } = await guarded()
  globalThis.document = { hidden: true }
  listeners.visibilitychange()
  await idle(479)
  assert.equal(socket.sent.length, 1)
  await idle(5)
  assert.deepEqual(socket.sent.slice(1), [PING])
  await idle(60)
  globalThis.document = { hidden: false }
  listeners.visibilitychange()
  assert.deepEqual(socket.sent.slice(1), [PING, PING])
  assert.equal(socket.readyState, 1)
  await pass(5000)
  assert.equal(socket.readyState, 3)
})

for (const [what, happen] of [
  ["a page is online again", () => listeners.online()],
  ["the machine slept", () => mock.timers.setTime(Date.now() + 20_000)],
])
  test(`after ${what} the connection is asked at once, and the next one is tried at once`, async () => {
    const { reader, socket } = await guarded()
    happen()
    await pass(5000)
    assert.deepEqual(socket.sent.slice(1), [PING])
    await pass(5000)
    assert.equal(socket.readyState, 3)
    await reader
    poll("/v1/stream/a", 5)
    await settle()
    listeners.online()
    assert.equal(FakeWebSocket.all.length, 2)
  })

for (const message of ["Internal server error", "Endpoint request timed out"])
  test(`after "${message}" of API Gateway, what is not answered is asked again, ever later, and then by requests`, async () => {
    mock.method(Math, "random", () => 0.5)
    const readers = ["a", "b", "c"].map((name) => poll(`/v1/stream/${name}`, 5))
    const socket = await opened()
    const fail = () => socket.tell({ message, connectionId: "x", requestId: "y" })
    await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
    for (const ms of [2000, 4000, 8000]) {
      await fail()
      await fail() // Of another frame.
      await pass(ms - 1)
      assert.equal(socket.sent.length, 1)
      await socket.tell({ stream: "/v1/stream/c", offset: offset(5), seconds: 3600 })
      await pass(1)
      await pass(5)
      assert.deepEqual(socket.sent.pop(), { watch: ["/v1/stream/b"], data: true })
    }
    answers[live("/v1/stream/b", 5)] = found(6)
    await fail()
    assert.equal((await readers[1]).headers.get("Stream-Next-Offset"), offset(6))
    assert.equal(socket.readyState, 1)
    mock.restoreAll()
  })

test("a connection that ends is followed by another, which watches what is waited for", async () => {
  const reader = poll("/v1/stream/a", 5)
  const socket = await opened()
  await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
  socket.close()
  assert.equal((await reader).status, 204)
  const again = poll("/v1/stream/a", 5)
  await pass(2000)
  const other = await opened()
  assert.notEqual(other, socket)
  assert.deepEqual(other.watched, ["/v1/stream/a"])
  answers[plain("/v1/stream/a", 5)] = found(9)
  await other.tell({ stream: "/v1/stream/a", offset: offset(9), seconds: 3600 })
  assert.equal((await again).headers.get("Stream-Next-Offset"), offset(9))
})

for (const [what, fail] of [
  ["is refused", () => FakeWebSocket.last.close()],
  ["does not open", () => pass(15_000)],
])
  test(`a socket that ${what} three times leaves the waiting to requests until it answers`, async () => {
    for (let failure = 0; failure < 3; failure++) {
      const reader = poll("/v1/stream/a", 5)
      await pass(8000)
      assert.equal(FakeWebSocket.all.length, failure + 1)
      await fail()
      assert.equal((await reader).status, 204)
    }
    answers[live("/v1/stream/a", 5)] = new Promise(() => {})
    const reader = poll("/v1/stream/a", 5)
    await settle()
    assert.deepEqual(asked(), [live("/v1/stream/a", 5)])
    await pass(8000)
    const socket = await opened()
    const { signal } = requests.at(-1).init
    assert.ok(!signal.aborted)
    await socket.tell({ stream: "/v1/stream/a", offset: offset(5), seconds: 3600 })
    assert.ok(signal.aborted)
    assert.ok(await isPending(reader))
    assert.equal(asked().length, 1)
  })

test("while there is no connection, the answer of a request is the answer", async () => {
  for (let failure = 0; failure < 3; failure++) {
    poll("/v1/stream/a", 5)
    await pass(8000)
    FakeWebSocket.last.close()
    await settle()
  }
  answers[live("/v1/stream/a", 5)] = found(9)
  const given = new AbortController()
  assert.equal((await poll("/v1/stream/a", 5, { signal: given.signal })).headers.get("Stream-Next-Offset"), offset(9))
  given.abort()
  assert.ok(requests.at(-1).init.signal.aborted, "its body is not read either")
})

test("a page of a long stream is the answer, whatever is in it", async () => {
  const reader = poll("/v1/stream/a", 5)
  const socket = await opened()
  answers[plain("/v1/stream/a", 5)] = found(5, {})
  await socket.tell({ stream: "/v1/stream/a", offset: offset(9), seconds: 3600 })
  assert.equal((await reader).status, 200)
})

test("a frame names at most 100 streams, has one token, and stays below 16 KiB", async () => {
  const names = [...Array(250).keys()].map((number) => `/v1/stream/${number}`)
  names.forEach((name) => poll(name, 5, { headers: { Authorization: "Bearer one" } }))
  poll("/v1/stream/other", 5, { headers: { Authorization: "Bearer two" } })
  poll("/v1/stream/open", 5)
  const long = [...Array(20).keys()].map((number) => `/v1/stream/${"x".repeat(3000)}${number}`)
  long.forEach((name) => poll(name, 5))
  const { sent, watched } = await opened()
  assert.deepEqual(sent.slice(0, 3).map((each) => each.watch.length), [100, 100, 50])
  assert.deepEqual([...new Set(sent.map((each) => each.token))], ["one", "two", undefined])
  assert.deepEqual(watched, [...names, "/v1/stream/other", "/v1/stream/open", ...long])
  assert.ok(sent.slice(4).length < 6)
  assert.ok(sent.every((each) => JSON.stringify(each).length <= 16 * 1024))
})

test("a server without a socket is asked for it once a minute, and gets the long-polls", async () => {
  delete answers["/v1/socket"]
  const init = { headers: { Authorization: "Bearer one" } }
  const places = () => requests.length - asked().length
  await poll("/v1/stream/a", 5, init)
  await poll("/v1/stream/b", 5, init)
  assert.deepEqual(asked(), [live("/v1/stream/a", 5), live("/v1/stream/b", 5)])
  assert.deepEqual([requests.at(-1).init, places()], [init, 1])
  await pass(60_001)
  await poll("/v1/stream/a", 5)
  assert.equal(places(), 2)
  socketFetch = makeSocketFetch({ fetch: server })
  answers["/v1/socket"] = Promise.reject(new TypeError("Failed to fetch"))
  await poll("/v1/stream/a", 5)
  await pass(1)
  await poll("/v1/stream/a", 5)
  assert.equal(places(), 4, "and at once where it could not be asked")
  delete globalThis.WebSocket
  await makeSocketFetch({ fetch: server })(`${ORIGIN}${live("/v1/stream/c", 5)}`)
  assert.equal(places(), 4, "a program without WebSocket does not ask")
})

test("a server that does not say where its socket is gets the long-polls", async () => {
  const late = new AbortController()
  mock.method(AbortSignal, "timeout", () => late.signal)
  const silent = (input, init) =>
    new URL(input).pathname === "/v1/socket"
      ? new Promise((_, reject) => init.signal.addEventListener("abort", () => reject(init.signal.reason)))
      : server(input, init)
  socketFetch = makeSocketFetch({ fetch: silent })
  answers[live("/v1/stream/a", 5)] = found(6)
  const reader = poll("/v1/stream/a", 5)
  assert.ok(await isPending(reader))
  late.abort(new DOMException("too late", "TimeoutError"))
  assert.equal((await reader).status, 200)
  await poll("/v1/stream/a", 5)
  mock.restoreAll()
})

test("the socket may be at another host, where a token is as safe", async () => {
  const askedAt = async (origin, url) => {
    FakeWebSocket.all = []
    answers["/v1/socket"] = Response.json({ url })
    makeSocketFetch({ fetch: server })(`${origin}${live("/v1/stream/a", 5)}`)
    await settle()
    return FakeWebSocket.last?.url
  }
  assert.equal(await askedAt(ORIGIN, "wss://sockets.example/prod"), "wss://sockets.example/prod")
  assert.equal(await askedAt("http://tides.example", "/v1/socket"), "ws://tides.example/v1/socket")
  for (const url of ["ws://sockets.example/prod", "http://sockets.example/prod", "ftp://sockets.example/", "http://"])
    assert.equal(await askedAt(ORIGIN, url), undefined)
})

test("every other request is made as it is", async () => {
  const calls = [
    [`${ORIGIN}/v1/stream/a?offset=${offset(5)}`],
    [new URL(`${ORIGIN}/v1/stream/a?offset=now&live=long-poll`), {}],
    [`${ORIGIN}/v1/stream/a?offset=-1&live=long-poll`],
    [`${ORIGIN}/v1/stream/a?live=long-poll`],
    [`${ORIGIN}${live("/v1/stream/a", 5)}`, { method: "HEAD" }],
    [new Request(`${ORIGIN}/v1/stream/a`, { method: "POST", body: "x" })],
  ]
  const given = []
  const passing = makeSocketFetch({ fetch: async (...call) => given.push(call) })
  for (const call of calls) await passing(...call)
  assert.deepEqual(given, calls.map(([input, init]) => [input, init]))
  const refused = await passing(`${ORIGIN}/v1/stream/a?live=sse&offset=-1`)
  assert.equal(refused.status, 400)
  assert.match((await refused.json()).error, /long-poll/)
})

test("a Request is read with its own headers and signal", async () => {
  const given = new AbortController()
  const request = new Request(`${ORIGIN}${live("/v1/stream/a", 5)}`, { headers: { Authorization: "Bearer one" }, signal: given.signal })
  const reader = socketFetch(request)
  const socket = await opened()
  answers[plain("/v1/stream/a", 5)] = found(9)
  await socket.tell({ stream: "/v1/stream/a", offset: offset(9), seconds: 3600 })
  assert.equal((await reader).status, 200)
  assert.equal(socket.sent[0].token, "one")
})
