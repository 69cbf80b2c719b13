// Where a stream was forked from, and what was forked from it, as a tree. It is looked for once it is opened.
import { useState } from "./preact-hooks.js"
import { getJson } from "./api.js"
import { html } from "./html.js"
import { linkTo } from "./links.js"
import { useLoaded } from "./loading.js"

const GENERATIONS = 32

const ask = (route, stream, signal) => getJson(`/v1/${route}?${new URLSearchParams({ stream })}`, signal)

// The sources, the farthest first. One that is deleted or hidden from this token ends the list: nothing is known of it.
async function loadSources(stats, signal) {
  const sources = []
  let fork = stats.forked_from
  while (fork && sources.length < GENERATIONS) {
    const source = { stream: fork.stream, note: "" }
    sources.unshift(source)
    try {
      fork = (await ask("stats", fork.stream, signal)).forked_from
      source.offset = fork?.offset
    } catch (error) {
      source.note = error.status === 410 ? "deleted, kept for its forks" : error.message
      fork = null
    }
  }
  return sources
}

function Name({ stream, offset, note }) {
  return html`<a href=${linkTo(stream)}>${stream}</a>${offset && html` <span class="hint">at <code>${offset}</code></span>`}${note && html` <span class="hint">(${note})</span>`}`
}

function Made({ stream }) {
  const [{ found, error }] = useLoaded((signal) => ask("forks", stream, signal), stream)
  if (error) return html`<p role="alert" class="error">${error.message}</p>`
  if (!found) return html`<p class="hint">Loading…</p>`
  const hidden = found.fork_count - found.forks.length
  return html`<ul class="tree">
    ${found.forks.map((each) => html`<li key=${each.stream}><${Name} stream=${each.stream} offset=${each.offset} note=${each.deleted && "deleted, kept for its forks"} />${each.forks > 0 && html`<${Below} stream=${each.stream} count=${each.forks} />`}</li>`)}
    ${!found.complete && hidden > 0 && html`<li class="hint">${hidden} more: in other buckets, behind the streams that were looked at, or hidden from this token</li>`}
  </ul>`
}

function Below({ stream, count }) {
  const [isOpen, setIsOpen] = useState(false)
  return html`<details onToggle=${(event) => setIsOpen(event.currentTarget.open)}><summary>${count} made of it</summary>${isOpen && html`<${Made} stream=${stream} />`}</details>`
}

function Tree({ stats }) {
  const [{ found: sources, error }] = useLoaded((signal) => loadSources(stats, signal), stats.stream)
  if (error) return html`<p role="alert" class="error">${error.message}</p>`
  if (!sources) return html`<p class="hint">Loading…</p>`
  const own = html`<b aria-current="page">${stats.stream}</b>${stats.forked_from && html` <span class="hint">at <code>${stats.forked_from.offset}</code></span>`}<${Made} stream=${stats.stream} />`
  const nested = [...sources].reverse().reduce((below, each) => html`<${Name} ...${each} /><ul class="tree"><li>${below}</li></ul>`, own)
  return html`<ul class="tree">${html`<li>${nested}</li>`}</ul>`
}

export function Forks({ stats }) {
  const [isOpen, setIsOpen] = useState(false)
  const { forked_from: source, forks } = stats
  return html`${source && html`<p>of <a href=${linkTo(source.stream)}>${source.stream}</a><br />at <code>${source.offset}</code></p>`}
    <p class="hint">${forks} made of it</p>
    <details onToggle=${(event) => setIsOpen(event.currentTarget.open)}><summary>Show the tree</summary>${isOpen && html`<${Tree} stats=${stats} />`}</details>`
}
