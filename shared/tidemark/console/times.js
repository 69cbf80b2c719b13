// When the messages in sight were appended, and where those lie that a compaction has left. The server is asked for a page
// of times, at most so often.
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

  // It is there again once its place is known.
  messageAt(number) {
    return this.version.value >= 0 ? this.messages.at(number) : null
  }

  of(number) {
    return this.version.value >= 0 && this.known.get(number)
  }

  want(number) {
    if (this.asked.has(number)) return
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
    const { gapped, offset } = message
    try {
      const told = await getJson(`/v1/times?${new URLSearchParams({ stream: this.path, offset: renderOffset(offset) })}`)
      // There may have been another compaction since; then the places of what is held are not told.
      if (gapped && Number(told.message_ends?.[gapped.count - 1]) === gapped.next) gapped.ends = told.message_ends.map(Number)
      this.keep(gapped?.first ?? first, offset, told)
    } catch {
      // A row without a time is as good: the messages themselves say what is wrong.
    }
  }

  keep(first, offset, { times_ms: times, messages, bytes, message_ends: ends }) {
    const there = ends && new Set(ends.map(Number))
    let [number, end, count] = [first, offset, 0]
    times.forEach((ms, index) => {
      count += messages[index]
      end = ends ? Number(ends[count - 1]) : end + bytes[index]
      for (let each = this.messages.at(number); each && !each.gapped && each.offset < end; each = this.messages.at(++number)) if (!there || there.has(each.next)) this.known.set(number, ms)
    })
    this.version.value++
  }
}

export function Appended({ times, number }) {
  const ms = times.of(number)
  useEffect(() => void (ms || times.want(number)), [times, number, ms])
  return html`<time class="time" title=${ms ? time(ms) : null}>${ms ? moment(ms) : ""}</time>`
}
