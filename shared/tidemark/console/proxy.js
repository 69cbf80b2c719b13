// A `fetch` for the SDKs of OpenAI and Anthropic and for the AI SDK. A call goes through the durable proxy, and its
// answer goes on after a lost connection. docs/guides/durable-proxy.md
//   new OpenAI({ apiKey: "unused", fetch: durableFetch({ url: "https://tidemark.example", token, key }) })

const UNUSED = /^(Bearer )?unused$/ // The key of an SDK whose upstream's key the server has.
const FIRST_PAUSE_MS = 500
const LONGEST_PAUSE_MS = 15_000
const LONGEST_WAIT_S = 60 // As `Retry-After` asks.
const RECONNECT_MS = 100 // After a connection that brought events.
const CALL_TRIES = 6
const READ_TRIES = 12 // In a row: about two minutes.
const CALL_MS = 55_000 // After a minute without headers a call has failed, and one more try would be one more call.
const ANSWER_MS = 90_000 // Within which the server answers.
const QUIET_MS = 45_000 // A connection has a heartbeat each 15 s.
const OF_THE_CONNECTION = ["connection", "content-encoding", "content-length", "transfer-encoding", "upstream-status"]

class AnswerError extends Error { // No repetition mends it.
  name = "AnswerError"
}

const isPassing = ({ status, headers }) => !headers.has("Upstream-Status") && (status === 429 || status >= 500)
const randomKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("")

function webUrl(text, name) {
  let url
  try {
    url = new URL(text)
  } catch {}
  if (!/^https?:$/.test(url?.protocol)) throw new TypeError(`${name} must be an absolute http: or https: URL, not ${JSON.stringify(text)}`)
  return url
}

function pause(failures, response, signal) {
  const most = Math.min(FIRST_PAUSE_MS * 2 ** (failures - 1), LONGEST_PAUSE_MS)
  const asked = Math.min(Number(response?.headers.get("Retry-After")) || 0, LONGEST_WAIT_S) * 1000
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer)
      signal.removeEventListener("abort", end)
      globalThis.removeEventListener?.("online", end)
      if (signal.aborted) reject(signal.reason)
      else resolve()
    }
    const timer = setTimeout(end, failures ? Math.max(asked, most * (0.5 + Math.random() / 2)) : RECONNECT_MS)
    signal.addEventListener("abort", end)
    globalThis.addEventListener?.("online", end)
    if (signal.aborted) end()
  })
}

// Tries again after a failure of the network or the server. The last response or error is the caller's.
async function persist(attempt, signal) {
  const began = Date.now()
  for (let failures = 1; ; failures++) {
    let result, problem
    try {
      result = await attempt()
      const isLate = result.response.status === 504 && Date.now() - began > CALL_MS
      if (isLate || !isPassing(result.response)) return result
    } catch (error) {
      problem = error
    }
    if (failures === CALL_TRIES && problem) throw problem
    if (failures === CALL_TRIES) return result
    await pause(failures, result?.response, signal)
  }
}

async function call(fetch, place, init) {
  const response = await fetch(place, { ...init, signal: AbortSignal.timeout(ANSWER_MS) })
  const content = await response.arrayBuffer()
  if (response.status !== 201) return { response, content }
  const { pathname, search } = new URL(response.headers.get("Location") ?? "", place)
  if (!search) throw new TypeError("The response of the server is not whole")
  // At the address of the call: behind a gateway, the server may not know it.
  return { response, url: `${place}/${pathname.split("/").at(-1)}${search}` }
}

function refusal({ response, content }) {
  const headers = new Headers(response.headers)
  const status = Number(headers.get("Upstream-Status"))
  if (!status) headers.set("x-should-retry", "false") // This module has tried again, and with the same key.
  for (const name of OF_THE_CONNECTION) headers.delete(name)
  return new Response(content, { status: status || response.status, headers })
}

// The events of one connection.
async function* eventsOf(fetch, url, signal) {
  const connection = new AbortController()
  const inTime = (promise) => {
    const timer = setTimeout(() => connection.abort(new Error("The connection is silent")), QUIET_MS)
    return promise.finally(() => clearTimeout(timer))
  }
  try {
    const response = await inTime(fetch(url, { cache: "no-store", signal: AbortSignal.any([signal, connection.signal]) }))
    if (response.status !== 200) {
      const message = `The answer cannot be read: ${response.status} ${await inTime(response.text())}`
      throw Object.assign(isPassing(response) ? new Error(message) : new AnswerError(message), { response })
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
    for (let text = ""; ; ) {
      const { done, value } = await inTime(reader.read())
      if (done) return
      const events = (text + value).split("\n\n")
      text = events.pop()
      for (const each of events) yield Object.fromEntries(each.split("\n").map((line) => line.split(/: ?(.*)/s)))
    }
  } finally {
    connection.abort()
  }
}

// The bytes of an answer, from its beginning to its end.
async function* answerOf(fetch, url, signal) {
  let offset = "-1"
  for (let failures = 0; ; ) {
    let problem
    failures++
    try {
      for await (const { event, id, data } of eventsOf(fetch, `${url}&offset=${offset}&live=sse`, signal)) {
        if (!id) continue // A heartbeat.
        const { streamClosed, upstreamError } = event === "control" ? JSON.parse(data) : {}
        const bytes = event === "data" && Uint8Array.from(atob(data), (each) => each.charCodeAt(0))
        offset = id // Which is the offset behind the event.
        failures = 0
        if (bytes) yield bytes
        if (upstreamError) throw new AnswerError(`The answer is not whole: ${upstreamError}`)
        if (streamClosed) return
      }
    } catch (error) {
      if (signal.aborted || error instanceof AnswerError) throw error
      problem = error
    }
    if (failures === READ_TRIES) throw new AnswerError("The connection to the answer is lost", { cause: problem })
    await pause(failures, problem?.response, signal)
  }
}

function streamOf(bytes, stop, end) {
  return new ReadableStream(
    {
      start: (controller) => stop.signal.addEventListener("abort", () => controller.error(stop.signal.reason)),
      cancel: (reason) => stop.abort(reason),
      async pull(controller) {
        const { done, value } = await bytes.next().catch((error) => {
          end()
          throw error
        })
        if (!done) return controller.enqueue(value)
        end()
        controller.close()
      },
    },
    { highWaterMark: 0 },
  )
}

export function durableFetch({ url, token, key, fetch = globalThis.fetch.bind(globalThis) }) {
  const { origin, pathname } = webUrl(url, "durableFetch: url")
  const place = `${origin}${pathname.replace(/\/$/, "")}/v1/proxy`

  async function prepare(input, init) {
    const target = webUrl(input.url ?? String(input), "durableFetch: the URL of a call").href
    const request = new Request(input, init)
    const chosen = typeof key === "function" ? await key(request.clone()) : key
    const headers = new Headers({ "Idempotency-Key": request.headers.get("Idempotency-Key") ?? randomKey() })
    for (const [name, value] of request.headers)
      if (!UNUSED.test(value)) headers.set(name === "authorization" ? "Upstream-Authorization" : name, value)
    if (chosen) headers.set("Idempotency-Key", chosen)
    const bearer = typeof token === "function" ? await token() : token
    if (bearer) headers.set("Authorization", `Bearer ${bearer}`)
    headers.set("Upstream-URL", target)
    headers.set("Upstream-Method", request.method)
    const body = await request.arrayBuffer()
    return { method: "POST", headers, body: body.byteLength ? body : undefined }
  }

  return async function durable(input, init) {
    const prepared = await prepare(input, init)
    const signal = init?.signal ?? input.signal ?? new AbortController().signal
    signal.throwIfAborted()
    const stop = new AbortController()
    const abort = () => stop.abort(signal.reason)
    const end = () => signal.removeEventListener("abort", abort)
    signal.addEventListener("abort", abort)
    // The request itself is not aborted: the server would go on with the call, and its answer has the URL to stop it.
    const calling = persist(() => call(fetch, place, prepared), stop.signal)
    const stopped = new Promise((_, reject) => stop.signal.addEventListener("abort", () => reject(stop.signal.reason)))
    const stopUpstream = async () => {
      const { url } = await calling
      const patch = async () => ({ response: await fetch(`${url}&action=abort`, { method: "PATCH", keepalive: true }) })
      if (url) await persist(patch, new AbortController().signal)
    }
    stopped.catch(stopUpstream).catch(() => {})
    const result = await Promise.race([calling, stopped])
    if (!result.url) return refusal(result)
    const headers = { "Content-Type": result.response.headers.get("Upstream-Content-Type"), Location: result.url }
    return new Response(streamOf(answerOf(fetch, result.url, stop.signal), stop, end), { headers })
  }
}
