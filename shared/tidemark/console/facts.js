// What is known of a stream, in a line, and what of it can be read, as a bar.
import { useState } from "./preact-hooks.js"
import { recorded } from "./api.js"
import { Dialog, Menu } from "./dialogs.js"
import { bytes, counted, time } from "./format.js"
import { html } from "./html.js"
import { linkTo } from "./links.js"
import { renderOffset } from "./messages.js"
import { Pace } from "./pace.js"
import { Ago, Left } from "./server.js"

const SHOWN_BYTES = 256 * 1024
const STATES = {
  connecting: "◌ connecting",
  live: "● live",
  reconnecting: "▲ connection lost, trying again",
  closed: "■ closed",
  stopped: "✕ stopped",
}

// It is shown as text, whatever its type says: as a page it could run scripts.
function Snapshot({ path, snapshot }) {
  const [shown, setShown] = useState(null)
  async function load() {
    try {
      const response = await recorded(`${path}/snapshot/${snapshot.offset}`, { redirect: "manual" })
      if (response.type === "opaqueredirect") setShown("It is too large for this page: follow the redirect of a GET.")
      else setShown((await response.text()).slice(0, SHOWN_BYTES))
    } catch (error) {
      setShown(String(error.message ?? error))
    }
  }
  return html`<span><button class="link" onClick=${load}>snapshot</button> at <code>${snapshot.offset}</code>, ${bytes(snapshot.bytes)}, <${Ago} at=${snapshot.published_at_ms} /></span>
    ${shown !== null && html`<${Dialog} title="Snapshot" onClose=${() => setShown(null)}><pre class="snapshot">${shown}</pre><//>`}`
}

function Details({ stats }) {
  const rows = { created: time(stats.created_at_ms), "first retained offset": stats.retained_offset, "tail offset": stats.tail_offset, "packed up to": stats.packed_offset }
  return html`<${Menu} label="Details" class="link">
    <div class="details"><table><tbody>${Object.entries(rows).map(([name, value]) => value && html`<tr key=${name}><th scope="row">${name}</th><td><code>${value}</code></td></tr>`)}</tbody></table>
    ${stats.producers.length > 0 && html`<table id="producers"><thead><tr><th scope="col">producer</th><th scope="col">epoch</th><th scope="col">seq</th></tr></thead>
      <tbody>${stats.producers.slice(-8).map((each) => html`<tr key=${each.id}><td>${each.id}</td><td>${each.epoch}</td><td>${each.seq}</td></tr>`)}</tbody></table>
      ${stats.producers.length > 8 && html`<p class="hint">and ${stats.producers.length - 8} more</p>`}`}</div>
  <//>`
}

// The server is asked now and then; meanwhile what the page has read says how far the stream goes and when it was written.
export function brought(stats, messages, rate) {
  const last = messages?.at(messages.end - 1)
  const tail = Number(stats.tail_offset)
  const read = last?.next ?? 0
  if (read <= tail) return stats
  return { ...stats, tail_offset: renderOffset(read), bytes: stats.bytes + read - tail, last_write_at_ms: Math.max(stats.last_write_at_ms, rate.at) }
}

// `held` is how many messages the page holds where it holds all of them: the server may only estimate.
export function Facts({ path, place, stats, kind, state, rate, held, looksLike }) {
  const { count, exact } = held === null ? stats?.messages ?? {} : { count: held, exact: true }
  const closed = stats?.status === "Closed" && (stats.closed_by ? ` by ${stats.closed_by.id}` : "")
  return html`<div class="facts" id="facts">
    <span id="state" class=${`state-${state.name}`}>${STATES[state.name]}${state.name === "closed" && closed}</span>
    ${place.bucket !== "v1" && html`<span>bucket ${place.bucket}</span>`}
    <span id="content-type">${stats?.content_type ?? "…"}${looksLike && html`, looks like ${looksLike}`}</span>
    ${stats && html`<span><b>${bytes(stats.bytes)}</b>${stats.compacted_offset ? " were written, of which" : " in"} ${exact ? "" : "about "}${counted(count, kind === "json" ? "message" : "append")}${stats.compacted_offset && " are left"}</span>
      <span>written <${Ago} at=${stats.last_write_at_ms} /></span>`}
    ${kind && html`<${Pace} rate=${rate} kind=${kind} />`}
    ${stats?.expiry && html`<span>expires in <${Left} until=${stats.expiry.ends_at_ms} />${stats.expiry.ttl_seconds !== null && ` (after ${stats.expiry.ttl_seconds} s without use)`}</span>`}
    ${stats?.compact && html`<span>keeps the last message of each key</span>`}
    ${stats?.compacted_offset && html`<span>compacted up to <code>${stats.compacted_offset}</code></span>`}
    ${stats?.snapshot && html`<${Snapshot} key=${stats.snapshot.offset} path=${path} snapshot=${stats.snapshot} />`}
    ${stats?.forked_from && html`<span>fork of <a href=${linkTo(stats.forked_from.stream)}>${stats.forked_from.stream}</a> at <code>${stats.forked_from.offset}</code></span>`}
    ${stats?.forks > 0 && html`<span>${counted(stats.forks, "fork")}</span>`}
    ${stats && html`<${Details} stats=${stats} />`}
  </div>`
}

// From the first byte ever to the tail: what is retained, what this page shows, and where something happened.
export function Extent({ stats, messages, end }) {
  const tail = Number(stats?.tail_offset)
  if (!tail) return html`<div class="extent"></div>`
  const place = (offset) => `${Math.min(100, (100 * Number(offset)) / tail)}%`
  const first = messages?.at(messages.first)?.offset
  const last = messages?.at(end - 1)
  const marks = { snapshot: stats.snapshot?.offset, fork: stats.forked_from?.offset }
  const said = [`Retained from ${stats.retained_offset} to ${stats.tail_offset}`, ...Object.entries(marks).map(([name, offset]) => offset && `${name} at ${offset}`), stats.compacted_offset && `compacted up to ${stats.compacted_offset}`, stats.status === "Closed" && "closed"]
  return html`<div class="extent" role="img" aria-label=${said.filter(Boolean).join(", ")} title=${said.filter(Boolean).join(", ")}>
    <span class="kept" style=${{ left: place(stats.retained_offset) }}></span>
    ${last && html`<span class="shown" style=${{ left: place(first), right: `calc(100% - ${place(last.next)})` }}></span>`}
    ${stats.compacted_offset && html`<span class="compacted" style=${{ left: place(stats.retained_offset), right: `calc(100% - ${place(stats.compacted_offset)})` }}></span>`}
    ${Object.entries(marks).map(([name, offset]) => offset && html`<span key=${name} class="mark" style=${{ left: place(offset) }}></span>`)}
    ${stats.status === "Closed" && html`<span class="end"></span>`}
  </div>`
}
