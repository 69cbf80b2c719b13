// How much of a stream came in the last seconds, while something comes.
import { bytes, short } from "./format.js"
import { html } from "./html.js"
import { now } from "./server.js"

const SECONDS = 5

export class Rate {
  constructor() {
    this.seconds = new Map()
    // When something came last.
    this.at = 0
  }

  add(count) {
    const now = Math.floor(Date.now() / 1000)
    this.at = Date.now()
    this.seconds.set(now, (this.seconds.get(now) ?? 0) + count)
    for (const second of this.seconds.keys()) if (second < now - SECONDS) this.seconds.delete(second)
  }

  perSecond() {
    const end = Math.floor(now.value / 1000)
    let sum = 0
    for (const [second, count] of this.seconds) if (second >= end - SECONDS && second < end) sum += count
    return sum / SECONDS
  }
}

// `kind` is the stream's: of JSON messages are counted, of others bytes, because the protocol knows no messages there.
export function Pace({ rate, kind }) {
  const found = rate.perSecond()
  return found > 0 && html`<span id="pace"><b>${kind === "json" ? `${short(found)} messages/s` : `${bytes(Math.round(found))}/s`}</b></span>`
}
