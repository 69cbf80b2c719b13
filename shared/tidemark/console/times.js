// When the messages in sight were appended. The server is asked for a page of times, at most so often.
import { signal } from "./signals.js"
import { useEffect } from "./preact-hooks.js"
import { getJson } from "./api.js"
import { moment, time } from "./format.js"
import { html } from "./html.js"
import { renderOffset } from "./messages.js"

const EVERY_MS = 500

export class Times {
  constructor(path, messages) {
    this.path = path
    this.messages = messages
    this.known = new Map()
    this.asked = new Set()
    this.wanted = new Set()
    this.version = signal(0)
  }

  of(number) {
    return this.version.value >= 0 && this.known.get(number)
  }

  want(number) {
    if (this.asked.has(number) || !this.messages.at(number)?.isExact) return
    this.wanted.add(number)
    this.timer ??= setTimeout(() => this.load(), EVERY_MS)
  }

  // One answer has the times of a page of the stream; of messages behind it another one is asked for.
  async load() {
    const first = Math.min(...this.wanted)
    this.timer = null
    this.wanted.clear()
    const message = this.messages.at(first)
    if (!message) return
    this.asked.add(first)
    try {
      const query = new URLSearchParams({ stream: this.path, offset: renderOffset(message.offset) })
      this.keep(first, message.offset, await getJson(`/v1/times?${query}`))
    } catch {
      // A row without a time is as good: the messages themselves say what is wrong.
    }
  }

  keep(first, offset, { times_ms: times, bytes }) {
    let [number, end] = [first, offset]
    times.forEach((ms, index) => {
      end += bytes[index]
      for (let each = this.messages.at(number); each?.isExact && each.offset < end; each = this.messages.at(++number)) this.known.set(number, ms)
    })
    this.version.value++
  }
}

export function Appended({ times, number }) {
  const ms = times.of(number)
  useEffect(() => void (ms || times.want(number)), [times, number, ms])
  return html`<time class="time" title=${ms ? time(ms) : null}>${ms ? moment(ms) : ""}</time>`
}
