// AG-UI's HttpAgent that reads from Tidemark (`agent.py`): each event comes once, whatever is lost or reloaded.
//
//     npm install && node ask.mjs "Why are there two tides a day?"
import { HttpAgent } from "@ag-ui/client"
import { stream } from "@durable-streams/client"
import { Observable } from "rxjs"

const ENDS = ["RUN_FINISHED", "RUN_ERROR"]
const EMPTY = { offset: "-1", messages: [], state: {} }

export class TidemarkAgent extends HttpAgent {
  /** `saved` is the thread up to the end of a run. A page that keeps it reads the rest alone after a reload. */
  constructor({ saved = EMPTY, tidemarkHeaders = {}, ...config }) {
    super({ initialMessages: saved.messages, initialState: saved.state, ...config })
    Object.assign(this, { saved, tidemarkHeaders })
  }

  clone() {
    return Object.assign(super.clone(), { saved: this.saved, tidemarkHeaders: this.tidemarkHeaders })
  }

  async runAgent(parameters, subscriber) {
    return this.keep(await super.runAgent(parameters, subscriber))
  }

  /** Show the thread, and go on with the run under way, after a reload or on another device. */
  async connectAgent(parameters, subscriber) {
    this.abortController = new AbortController()
    Object.assign(this, { messages: structuredClone(this.saved.messages), state: structuredClone(this.saved.state) })
    return this.keep(await super.connectAgent(parameters, subscriber))
  }

  keep(result) {
    if (this.ended) this.saved = structuredClone({ offset: this.ended, messages: this.messages, state: this.state })
    return result
  }

  /** Ask the agent to stop. Its run then ends with RUN_ERROR. `detachActiveRun` only stops to read. */
  abortRun() {
    this.patient("/stop", { keepalive: true }).catch(console.error)
  }

  run(input) {
    return this.events((signal) => this.patient("", { ...this.requestInit(input), signal }))
  }

  connect() {
    return this.events((signal) => this.patient("/connect", { signal }))
  }

  events(locate) {
    return new Observable((observer) => {
      const left = new AbortController()
      const signal = AbortSignal.any([left.signal, this.abortController.signal])
      this.ended = null
      this.read(locate, signal, observer).then(() => observer.complete(), (error) => observer.error(error))
      return () => left.abort()
    })
  }

  /** Pass events on until no run is under way. */
  async read(locate, signal, observer) {
    const { stream: url, start, tail, silentMs } = await locate(signal)
    const at = { offset: start ?? this.saved.offset, isOpen: false }
    const isOver = () => !at.isOpen && at.offset >= tail
    // The agent is silent: its server finds out whether its process has died, and then ends the run.
    const ask = () => this.patient("/connect", { signal }).catch(() => {})
    for (let ms = 100; !isOver(); ms = Math.min(2 * ms, 5_000)) {
      const connection = new AbortController()
      let silence = setInterval(ask, silentMs)
      try {
        const options = { signal: AbortSignal.any([signal, connection.signal]), headers: this.tidemarkHeaders }
        // A long-poll comes whole or not at all. The client passes an event stream's cut events on twice.
        const response = await stream({ url, offset: at.offset, live: "long-poll", json: true, ...options })
        response.subscribeJson((batch) => {
          if (batch.items.length) {
            clearInterval(silence)
            silence = setInterval(ask, silentMs)
          }
          ms = 100
          for (const event of batch.items) pass(event, at, observer)
          at.offset = batch.offset
          if (isOver()) connection.abort()
        })
        await response.closed
      } catch (error) {
        if (!isOver() && error.status >= 400 && error.status < 500) throw error
      } finally {
        clearInterval(silence)
      }
      signal.throwIfAborted()
      await new Promise((resolve) => setTimeout(resolve, ms))
    }
    this.ended = at.offset
  }

  /** Send a request again while the network or the server fails. Each request here may be repeated. */
  async patient(path, options) {
    const url = path ? `${this.url}/${encodeURIComponent(this.threadId)}${path}` : this.url
    const headers = { ...this.headers, "Content-Type": "application/json", Accept: "application/json" }
    for (let ms = 100; ; ms = Math.min(2 * ms, 5_000)) {
      const response = await this.fetch(url, { method: "POST", ...options, headers }).catch((error) => {
        if (options.signal?.aborted) throw error
      })
      if (response?.ok) return response.status === 204 ? null : response.json()
      if (response && ![429, 502, 503, 504].includes(response.status)) {
        throw Object.assign(new Error(`HTTP ${response.status}: ${await response.text()}`), { status: response.status })
      }
      await new Promise((resolve) => setTimeout(resolve, ms))
    }
  }
}

/** Behind the end of a run only another run counts: the writer of a lost run may have been slow. */
function pass(event, at, observer) {
  if (event.type === "RUN_STARTED") at.isOpen = true
  if (!at.isOpen || (event.type === "CUSTOM" && event.name === "alive")) return
  if (ENDS.includes(event.type)) at.isOpen = false
  observer.next(event)
}
