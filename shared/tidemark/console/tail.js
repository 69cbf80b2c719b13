// Reads a stream from an offset and goes on reading, by the official client, which waits on the page's socket. A reader that is
// cut off reads on from where it is: the client repeats what fails, and this begins again where the client gives up.
import { Refused, recorded, token } from "./api.js"
import { addressOf } from "./links.js"
import { makeSocketFetch } from "./socket.js"

const FINAL = new Set([400, 401, 403, 404, 410])
const BACKOFF = { initialDelay: 500, maxDelay: 10_000, multiplier: 2, maxRetries: Infinity }
const socketFetch = makeSocketFetch({ fetch: recorded })

// Whether the same request would be refused again.
export const isFinal = (error) => FINAL.has(error.status)

export class Tail {
  // `onChunk(bytes, next offset, its own offset, isNew)`, where what was already there when reading began is not new; `onState(name, error)` with connecting, live, reconnecting, closed or stopped.
  // A reader that was stopped tells no state.
  constructor(path, offset, { onChunk, onState }) {
    this.path = path
    this.offset = offset
    this.onChunk = onChunk
    this.abort = new AbortController()
    this.onState = (...told) => this.abort.signal.aborted || onState(...told)
    this.hasCaughtUp = false
  }

  // An offset with the cursor, which names the incarnation.
  place(offset) {
    return this.cursor ? `${offset}.${this.cursor}` : offset
  }

  async run() {
    this.onState("connecting")
    while (!this.abort.signal.aborted) {
      try {
        if (await this.read()) return this.onState("closed")
      } catch (error) {
        if (this.abort.signal.aborted) return
        if (isFinal(error)) return this.onState("stopped", new Refused(error.status, error.json?.error ?? error.message))
        this.onState("reconnecting")
        await new Promise((resolve) => setTimeout(resolve, BACKOFF.initialDelay))
      }
    }
  }

  async read() {
    const { stream } = await import("./durable-streams.js")
    const response = await stream({
      url: addressOf(this.path),
      offset: this.place(this.offset),
      live: "long-poll",
      headers: token.value ? { Authorization: `Bearer ${token.value}` } : {},
      signal: this.abort.signal,
      warnOnHttp: false,
      backoffOptions: BACKOFF,
      fetch: (...call) => this.fetch(...call),
    })
    response.subscribeBytes((chunk) => {
      const start = Number(this.offset)
      this.offset = chunk.offset
      this.cursor = chunk.cursor
      if (chunk.data.length) this.onChunk(chunk.data, Number(chunk.offset), start, this.hasCaughtUp)
      this.hasCaughtUp ||= chunk.upToDate
    })
    await response.closed
    return response.streamClosed
  }

  async fetch(...call) {
    try {
      const response = await socketFetch(...call)
      this.onState(response.status >= 500 || response.status === 429 ? "reconnecting" : "live")
      return response
    } catch (error) {
      if (!this.abort.signal.aborted) this.onState("reconnecting")
      throw error
    }
  }

  stop() {
    this.abort.abort()
  }
}
