// A `fetch` whose long-polls wait on one WebSocket per server. Small data comes by it, the rest by plain GETs.
// docs/reference/socket.md
//   stream({ url, live: "long-poll", fetch: socketFetch })

const TRIES = 3 // After so many failures in a row requests wait, until a later try succeeds.
const ANSWER_MS = 15_000
const WATCH_MS = 30_000 // API Gateway waits for 29 s.
const KEEP_ALIVE_MS = 480_000
const QUIET_SECONDS = 60 // Silence after which a ping asks whether the server is there.
const PONG_MS = 10_000 // The time for the answer.
const LOOK_MS = 5000 // A timer stands still while the machine sleeps, and is late then.
const NONE_MS = 60_000 // A server without a socket is asked again after this.
const IDLE_MS = 1000 // Readers come back at once,
const LEFT_MS = 60_000 // and who does not come back for so long has left.
const MOST_PAGES = 16 // Pages that wait for their readers, of 32 KiB at most.
const MARKS = 2 ** 26

const NEXT = "Stream-Next-Offset"
const UP_TO_DATE = "Stream-Up-To-Date"
const CLOSED = "Stream-Closed"

// Has the sockets by which nothing comes, although a gateway opens them, until the tab is closed.
function silent() {
  try {
    return sessionStorage
  } catch {
    return {} // A program has none, and a page may have no right to it.
  }
}

function unlessAborted(signal, promise) {
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason)
    if (signal.aborted) abort()
    signal.addEventListener("abort", abort)
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort))
  })
}

class Socket {
  watches = new Map() // By path: { token, tail, told, … }

  constructor(url, quietSeconds) {
    this.url = url
    this.quietMs = quietSeconds * 1000
    this.name = `tidemark-silent ${url}`
    this.failures = silent()[this.name] ? TRIES : 0
    for (const name of ["visibilitychange", "online"]) globalThis.addEventListener?.(name, () => this.look(true))
  }

  watch(path, token) {
    let watch = this.watches.get(path)
    if (!watch) {
      this.watches.set(path, (watch = this.tell({ token, pages: new Map(), readers: 0, leftAt: 0, fails: 0 })))
      if (!this.ws && !this.retry) this.connect()
      this.flush ??= setTimeout(() => this.send(), 5)
    }
    return watch
  }

  tell(watch, news) {
    Object.assign(watch, news).wake?.()
    watch.told = new Promise((resolve) => (watch.wake = resolve))
    return watch
  }

  // Its readers ask again, with their newest tokens.
  end(path, watch, news) {
    clearTimeout(watch.timer)
    if (this.watches.get(path) === watch) this.watches.delete(path)
    this.tell(watch, { isOver: true, ...news })
    if (!this.watches.size) setTimeout(() => this.watches.size || this.close(), IDLE_MS)
  }

  connect() {
    let ws
    try {
      ws = this.ws = new WebSocket(this.url)
    } catch {
      return this.lose() // The page may not open it.
    }
    this.timer = setTimeout(() => this.lose(), ANSWER_MS)
    ws.onopen = () => {
      clearTimeout(this.timer)
      this.timer = setInterval(() => this.look(), LOOK_MS)
      this.pongs = 0 // Of the empty answers those to `unwatch` do not count. An older server answers no ping.
      this.answersPings = this.hasHeard = false
      this.heardAt = this.lookedAt = Date.now()
      this.ping()
      this.send()
    }
    ws.onmessage = ({ data }) => this.ws === ws && this.hear(data)
    ws.onclose = () => this.ws === ws && this.lose()
  }

  ping(ms) {
    this.ws.send('{"action":"ping"}')
    this.pingedAt = Date.now()
    if (!this.answersPings || !ms) return
    clearTimeout(this.pong)
    this.pong = setTimeout(() => this.lose(), ms)
  }

  look(isBack) {
    const now = Date.now()
    const isHidden = globalThis.document?.hidden
    isBack ||= now - this.lookedAt > 2 * LOOK_MS
    this.lookedAt = now
    if (isBack && !isHidden && this.retry) return this.again()
    if (this.ws?.readyState !== WebSocket.OPEN) return
    const isQuiet = now - this.heardAt >= this.quietMs && !this.pong
    const isDoubted = this.answersPings && !isHidden && (isBack || isQuiet)
    if (!isDoubted && now - this.pingedAt < KEEP_ALIVE_MS) return
    this.failures = 0
    this.ping(isHidden ? 0 : isBack ? PONG_MS / 2 : PONG_MS)
  }

  close() {
    const { ws } = this
    clearInterval(this.timer)
    clearTimeout(this.pong)
    this.pong = this.ws = null
    ws?.close()
  }

  lose() {
    this.close()
    this.retry = setTimeout(() => this.again(), Math.random() * 1000 * Math.min(2 ** ++this.failures, 60))
    for (const each of this.watches) this.end(...each)
  }

  again() {
    clearTimeout(this.retry)
    this.retry = null
    if (this.watches.size) this.connect()
  }

  send() {
    this.flush = null
    if (this.ws?.readyState !== WebSocket.OPEN) return
    const frames = []
    for (const [path, watch] of this.watches) {
      if (watch.timer) continue
      watch.timer = setTimeout(() => {
        if (!this.hasHeard) this.distrust()
        this.refuse(503)
        this.lose()
      }, WATCH_MS)
      watch.isFailed = false
      const frame = frames.at(-1)
      const fits = frame?.watch.length < 100 && JSON.stringify(frame).length + path.length < 16_000
      if (fits && frame.token === watch.token) frame.watch.push(path)
      else frames.push({ watch: [path], token: watch.token, data: true })
    }
    for (const frame of frames) this.ws.send(JSON.stringify(frame))
  }

  // Requests wait from now on.
  distrust() {
    this.failures = Math.max(this.failures, TRIES)
    silent()[this.name] = true
  }

  hear(data) {
    if (!this.hasHeard) delete silent()[this.name]
    this.hasHeard = true
    this.heardAt = Date.now()
    clearTimeout(this.pong)
    this.pong = null
    try {
      const messages = [JSON.parse(data)].flat()
      if (!messages.length) this.answersPings ||= ++this.pongs > 0
      for (const each of messages) if (this.ws) this.receive(each)
    } catch {
      this.lose()
    }
  }

  receive({ stream, offset, seconds, closed, status, message, ...page }) {
    if (message) return this.askAgain()
    if (!stream && !status) return this.lose()
    // A server that answers and ends the connection at once is asked less and less often, too.
    this.failures = Math.min(this.failures, TRIES - 1)
    if (!stream) return this.refuse(status)
    const watch = this.watches.get(stream)
    if (watch && !watch.readers && Date.now() - watch.leftAt > LEFT_MS) this.end(stream, watch)
    if (!this.watches.has(stream)) {
      this.pongs--
      return this.ws.send(JSON.stringify({ unwatch: [stream] }))
    }
    if (page.data !== undefined) {
      if (watch.pages.size >= MOST_PAGES) watch.pages.clear()
      watch.pages.set(page.from, { ...page, offset, closed })
    }
    if (closed || status) return this.end(stream, watch, { tail: "closed", status })
    if (seconds) {
      clearTimeout(watch.timer)
      watch.timer = setTimeout(() => this.end(stream, watch), seconds * 800)
    }
    // Messages may overtake each other.
    this.tell(watch, offset < watch.tail ? {} : { tail: offset })
  }

  // API Gateway could not ask the server, and does not say which frame it is about.
  askAgain() {
    const spread = 500 + Math.random() * 1000
    for (const [path, watch] of this.watches) {
      if (!watch.timer || watch.tail !== undefined || watch.isFailed) continue
      clearTimeout(watch.timer)
      watch.isFailed = true
      watch.timer = setTimeout(() => {
        watch.timer = null
        this.flush ??= setTimeout(() => this.send(), 5)
      }, spread * 2 ** ++watch.fails)
      if (watch.fails > TRIES) this.end(path, watch, { status: 503 })
    }
  }

  // It says of a whole frame, and not of which: of one without an answer.
  refuse(status) {
    for (const [path, watch] of this.watches) if (watch.timer && watch.tail === undefined) this.end(path, watch, { status })
  }
}

// The low bits of a cursor say of which stream it is: another one may have the name by now.
const isOfAnother = (cursor, page) => cursor && cursor % MARKS !== page.cursor % MARKS

// What a long-poll would answer.
function answerOf({ data, encoding, type, etag, offset, closed, ...page }, cursor) {
  const headers = { "Content-Type": type, [NEXT]: offset, [UP_TO_DATE]: "true" }
  if (closed) headers[CLOSED] = "true"
  else headers["Stream-Cursor"] = cursor ?? page.cursor
  if (!data) return new Response(null, { status: 204, headers })
  const body = encoding ? Uint8Array.from(atob(data), (char) => char.charCodeAt()) : data
  return new Response(body, { headers: { ...headers, ETag: etag } })
}

// Answers a long-poll. `ask(true)` sends it to the server, `ask(false)` reads what is there.
async function poll(socket, { path, token, offset, cursor, signal }, ask) {
  const watch = socket.watch(path, token)
  const isNew = () => watch.tail !== undefined && watch.tail !== offset
  const askAgain = () => new Response(null, { status: 204, headers: { [NEXT]: offset, [UP_TO_DATE]: "true" } })
  watch.readers += 1
  try {
    for (;;) {
      while (!isNew() && !watch.isOver) {
        const stop = new AbortController()
        const asked = socket.failures < TRIES ? [] : [ask(true, AbortSignal.any([signal, stop.signal]))]
        const answer = await unlessAborted(signal, Promise.race([watch.told, ...asked]))
        if (answer) return answer
        stop.abort()
        // The watch has another reader's token. This one may have ended meanwhile, and the client knows a newer one.
        if (watch.token !== token) return askAgain()
      }
      const page = watch.token === token && watch.pages.get(offset)
      if (page && !isOfAnother(cursor, page)) return answerOf(page, cursor)
      if (watch.status) return await ask(true, signal)
      if (!isNew()) return askAgain()
      const { told } = watch
      const answer = await ask(false, signal)
      const { headers } = answer
      const next = headers.get(NEXT)
      const isUpToDate = headers.has(UP_TO_DATE)
      // A read that finds nothing comes from no cache. One that finds data may be older than what was told.
      if (isUpToDate && told === watch.told && (next === offset || next > watch.tail)) watch.tail = next
      if (next !== offset || !isUpToDate || headers.has(CLOSED)) return answer
    }
  } finally {
    watch.readers -= 1
    watch.leftAt = Date.now()
    if (signal.aborted) socket.end(path, watch)
  }
}

// Data without the close that came with them; the next answer is the close. The official client 0.2.7 reads one answer ahead
// of its caller, and ends at a close.
function closedLater(answer, offset) {
  if (answer.status !== 200 || answer.headers.get(NEXT) === offset || !answer.headers.has(CLOSED)) return answer
  const later = new Response(answer.body, answer)
  later.headers.delete(CLOSED)
  return later
}

async function findSocket(fetch, origin, quietSeconds) {
  const place = `${origin}/v1/socket`
  const answer = globalThis.WebSocket && (await fetch(place, { signal: AbortSignal.timeout(ANSWER_MS) }))
  if (!answer?.ok) return null
  const url = new URL((await answer.json()).url, place)
  url.protocol = url.protocol.replace("http", "ws")
  // A token goes to no less safe a place.
  const isSafe = url.protocol === "wss:" || (url.protocol === "ws:" && place.startsWith("http:"))
  return isSafe ? new Socket(url, quietSeconds) : null
}

export function makeSocketFetch({ fetch = globalThis.fetch.bind(globalThis), quietSeconds = QUIET_SECONDS } = {}) {
  const origins = new Map()

  function socketOf(origin) {
    let known = origins.get(origin)
    if (!known || known.until < Date.now()) {
      origins.set(origin, (known = { until: Infinity }))
      const none = (ms) => (known.until = Date.now() + ms) && null
      const fail = (error) => none(error?.name === "TimeoutError" ? NONE_MS : 0)
      known.socket = findSocket(fetch, origin, quietSeconds).then((socket) => socket ?? none(NONE_MS), fail)
    }
    return known.socket
  }

  return async function socketFetch(input, init) {
    const url = new URL(input.url ?? input, globalThis.location?.href)
    const [live, offset, cursor] = ["live", "offset", "cursor"].map((name) => url.searchParams.get(name))
    if (live === "sse") return Response.json({ error: 'socketFetch needs live: "long-poll" (or true), not "sse"' }, { status: 400 })
    if (live !== "long-poll" || !/^\d/.test(offset) || (init?.method ?? input.method ?? "GET") !== "GET") return fetch(input, init)
    const signal = init?.signal ?? input.signal ?? new AbortController().signal
    const socket = await unlessAborted(signal, socketOf(url.origin))
    if (!socket) return closedLater(await fetch(input, init), offset)
    const authorization = new Headers(init?.headers ?? input.headers).get("Authorization")
    const token = authorization?.replace(/^Bearer +/i, "")
    const plain = new URL(url)
    plain.searchParams.delete("live")
    const ask = (waits, signal) => fetch(waits ? input : input.url ? new Request(plain, input) : plain.href, { ...init, signal })
    return closedLater(await poll(socket, { path: url.pathname, token, offset, cursor, signal }, ask), offset)
  }
}

export const socketFetch = makeSocketFetch()
