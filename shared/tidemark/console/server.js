// What is known of the server as a whole: whether it answers, whether it is well, and whether it shows its numbers.
// And the time, by which ages go on.
import { signal } from "./signals.js"
import { Refused, getJson, loadMe, returns, send, silentSince, sinceHeard, token } from "./api.js"
import { age, clock, duration, time } from "./format.js"
import { html } from "./html.js"

// It is asked for its health when nothing was heard of it for so long, and so often while it does not answer.
const QUIET_MS = 5000
const SILENT_MS = 2000
const PATIENCE_MS = 8000

export const now = signal(Date.now())
export const health = signal(null)
// What the server says of itself while it is not well.
export const complaint = signal("")
// A server of your own shows its numbers, to a token that may read everything; null until that is known.
export const showsNumbers = signal(null)

let askedAt = 0

export async function look() {
  askedAt = Date.now()
  try {
    health.value = await getJson("/v1/health", AbortSignal.timeout(PATIENCE_MS))
    complaint.value = ""
  } catch (error) {
    if (error instanceof Refused) complaint.value = error.message
  }
}

async function askForNumbers() {
  try {
    await send({ method: "HEAD", path: "/v1/rates" })
    showsNumbers.value = true
  } catch (error) {
    if (error instanceof Refused) showsNumbers.value = false
  }
}

function tick() {
  now.value = Date.now()
  const isDue = silentSince.value ? SILENT_MS : QUIET_MS
  if (!document.hidden && Math.min(sinceHeard(), Date.now() - askedAt) >= isDue) look()
}

export function watchServer() {
  look()
  token.subscribe(() => void askForNumbers())
  returns.subscribe((count) => void (count && (loadMe(), askForNumbers())))
  setInterval(tick, 1000)
}

export const Ago = ({ at }) => html`<time datetime=${new Date(at).toISOString()} title=${time(at)}>${age(now.value - at)} ago</time>`
export const Left = ({ until }) => html`<time datetime=${new Date(until).toISOString()} title=${time(until)}>${duration(until - now.value)}</time>`

export function Banner() {
  const since = silentSince.value
  if (since) return html`<p class="banner" role="alert">No answer since <b>${clock(since)}</b>, for <span class="for">${duration(now.value - since)}</span>. This page shows what it knew then, and goes on by itself.</p>`
  return complaint.value && html`<p class="banner" role="alert">${complaint.value}</p>`
}
