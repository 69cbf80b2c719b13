// Which messages a filter means, and the search for them in the whole stream, a page after the other.
import { useEffect, useState } from "./preact-hooks.js"
import { send, token } from "./api.js"
import { bytes, number } from "./format.js"
import { html } from "./html.js"
import { Messages, joined, renderOffset } from "./messages.js"

// `$.user.id=42` is a member and its value, `$.user.id` a member that is there; all else is a text, in any case.
const MEMBER = /^\$\.([^=]+?)(?:\s*=\s*(.*))?$/
// What was looked at is dropped by the search itself.
const SCAN = { maxMessages: Infinity, maxBytes: Infinity }
const BRACKETS = [Uint8Array.of(91), Uint8Array.of(93)]

const written = (value) => (typeof value === "string" ? value : JSON.stringify(value))

function memberOf(json, names) {
  try {
    return names.reduce((value, name) => value?.[name], JSON.parse(json))
  } catch {
    return undefined
  }
}

// Whether the filter means a message, by its text.
export function matcher(filter, kind) {
  const [, path, wanted] = (kind === "json" && filter.match(MEMBER)) || []
  if (!path) {
    const part = filter.toLowerCase()
    return (text) => text.toLowerCase().includes(part)
  }
  const names = path.trim().split(".")
  return (text) => {
    const value = memberOf(text, names)
    return value !== undefined && (wanted === undefined || written(value) === wanted)
  }
}

export class Search {
  constructor(path, kind, filter, from, to, onProgress) {
    Object.assign(this, { path, kind, to, onProgress, offset: from, from: Number(from), error: null, isRunning: false, isDone: false })
    this.isMeant = matcher(filter, kind)
    this.found = new Messages(kind)
    this.scan = new Messages(kind, SCAN)
    this.seen = 0
  }

  async run() {
    this.abort = new AbortController()
    this.isRunning = true
    this.error = null
    try {
      while (!this.isDone) {
        await this.readPage(this.abort.signal)
        this.onProgress()
      }
    } catch (error) {
      if (!this.abort.signal.aborted) this.error = error
    }
    this.isRunning = false
    this.onProgress()
  }

  stop() {
    this.abort?.abort()
  }

  async readPage(signal) {
    const response = await send({ path: `${this.path}?${new URLSearchParams({ offset: this.offset })}` }, signal)
    const page = new Uint8Array(await response.arrayBuffer())
    const [start, next] = [Number(this.offset), response.headers.get("Stream-Next-Offset")]
    if (page.length) this.scan.add(page, Number(next), start)
    this.offset = next
    this.isDone = Number(next) >= this.to || response.headers.has("Stream-Up-To-Date")
    // The last line of a page may go on in the next one.
    this.look(this.isDone || this.kind !== "text" ? this.scan.end : this.scan.end - 1)
    this.scan.dropBefore(this.seen)
  }

  look(end) {
    for (; this.seen < end; this.seen++) {
      if (!this.isMeant(this.scan.text(this.seen))) continue
      const { bytes, offset, next } = this.scan.at(this.seen)
      this.found.breakLine()
      this.found.add(this.kind === "json" ? joined([BRACKETS[0], bytes, BRACKETS[1]]) : bytes, next, offset)
    }
  }

  get searched() {
    return Number(this.offset) - this.from
  }
}

// The search for what the filter means, and a function that begins it between two offsets. It ends with another filter or stream.
export function useSearch(path, kind, filter) {
  const [search, setSearch] = useState(null)
  const [, draw] = useState(0)
  useEffect(() => setSearch(null), [path, kind, filter, token.value])
  useEffect(() => () => search?.stop(), [search])
  const begin = (from, to) => {
    const made = new Search(path, kind, filter, from, Number(to), () => draw((old) => old + 1))
    setSearch(made)
    made.run()
  }
  return [search, begin, () => setSearch(null)]
}

export function Progress({ search, onEnd }) {
  const { found, error, isDone, isRunning, searched, from, to } = search
  return html`<p class="hint" id="searched"><progress max=${Math.max(1, to - from)} value=${searched} aria-label="Searched"></progress>
    <span role="status">${isDone ? "Searched all" : "Searched"} ${bytes(searched)}${!isDone && ` of ${bytes(to - from)}`}: ${number(found.end)} found${found.first > 0 && `, the latest ${number(found.end - found.first)} are shown`}</span>
    ${!isDone && html`<button onClick=${() => (isRunning ? search.stop() : search.run())}>${isRunning ? "Stop" : "Go on"}</button>`}
    <button onClick=${onEnd}>Back to the latest messages</button>
    ${error && html`<span role="alert" class="error">${error.message}</span>`}</p>`
}
