// Whether the server is well, and which streams were written last.
import { useEffect, useState } from "./preact-hooks.js"
import { getJson, missing, pathOf, send } from "./api.js"
import { ago, bytes, number } from "./format.js"
import { html } from "./html.js"
import { linkTo } from "./links.js"

const EVERY_MS = 3000
const LOOKED_AT = 200
const RECENT = 12

function parseMetrics(text) {
  const found = new Map()
  for (const line of text.split("\n")) {
    const match = line.match(/^(\w+)(\{[^}]*\})? (\S+)$/)
    if (match) found.set(match[1] + (match[2] ?? ""), Number(match[3]))
  }
  return found
}

function total(metrics, name) {
  let sum = 0
  for (const [key, value] of metrics) if (key === name || key.startsWith(`${name}{`)) sum += value
  return sum
}

// The bound of the bucket in which the share of all observations is reached.
function quantile(metrics, name, share) {
  const buckets = [...metrics].filter(([key]) => key.startsWith(`${name}_bucket`)).map(([key, value]) => [key.match(/le="([^"]+)"/)[1], value])
  const all = metrics.get(`${name}_count`) ?? 0
  if (!all) return "–"
  const [bound] = buckets.find(([, below]) => below >= share * all) ?? ["+Inf"]
  return bound === "+Inf" ? "over the last bound" : `≤ ${Number(bound) * 1000} ms`
}

function Card({ title, value, note }) {
  return html`<div class="card"><h3>${title}</h3><p class="big">${value}</p>${note && html`<p class="hint">${note}</p>`}</div>`
}

export function Overview() {
  const [health, setHealth] = useState(null)
  const [metrics, setMetrics] = useState({ now: null, before: null, seconds: 1, error: "" })
  const [recent, setRecent] = useState({ streams: [], error: "", all: true })

  useEffect(() => {
    let last = null
    const abort = new AbortController()
    async function look() {
      try {
        setHealth(await getJson("/v1/health", abort.signal))
      } catch (error) {
        if (!abort.signal.aborted) setHealth({ status: error.message })
      }
      try {
        const now = parseMetrics(await (await send({ path: "/v1/metrics" }, abort.signal)).text())
        const at = performance.now()
        setMetrics({ now, before: last?.now ?? null, seconds: last ? (at - last.at) / 1000 : 1, error: "" })
        last = { now, at }
      } catch (error) {
        if (!abort.signal.aborted) setMetrics((old) => ({ ...old, error: error.status === 404 ? "none" : error.message }))
        if (error.status === 404) clearInterval(timer)
      }
    }
    async function list() {
      try {
        const page = await getJson(`/v1/streams?limit=${LOOKED_AT}`, abort.signal)
        const streams = page.streams.sort((one, other) => other.last_write_at_ms - one.last_write_at_ms).slice(0, RECENT)
        setRecent({ streams, error: "", all: !page.has_more })
      } catch (error) {
        if (!abort.signal.aborted) setRecent({ streams: [], error: error.message, all: true })
      }
    }
    const timer = setInterval(look, EVERY_MS)
    look()
    list()
    return () => {
      clearInterval(timer)
      abort.abort()
    }
  }, [])

  const { now, before, seconds } = metrics
  const rate = (name) => (before ? ((total(now, name) - total(before, name)) / seconds).toFixed(1) : "–")
  return html`<main id="main" tabindex="-1">
    <h1>Overview</h1>
    <div class="cards">
      <${Card} title="Health" value=${health?.status ?? "…"} note=${health?.version && `version ${health.version}${health.commit ? `, commit ${health.commit}` : ""}`} />
      ${now &&
      html`<${Card} title="Requests a second" value=${rate("tidemark_requests_total")} note=${`${number(total(now, "tidemark_requests_total"))} since the start`} />
        <${Card} title="Appends a second" value=${rate("tidemark_appends_total")} note=${bytes(total(now, "tidemark_append_bytes_total"))} />
        <${Card} title="Waiting readers" value=${number(total(now, "tidemark_waiting"))} />
        <${Card} title="Time of a storage call" value=${quantile(now, "tidemark_storage_seconds", 0.5)} note=${`99 %: ${quantile(now, "tidemark_storage_seconds", 0.99)}`} />
        <${Card} title="From an append to its reader" value=${quantile(now, "tidemark_wake_seconds", 0.5)} note=${`99 %: ${quantile(now, "tidemark_wake_seconds", 0.99)}`} />
        <${Card} title="Errors of the server" value=${number(total(now, "tidemark_faults_total"))} note="since the start" />`}
    </div>
    ${metrics.error === "none" && html`<p class="notice">This deployment keeps its metrics in CloudWatch; the stack has a dashboard.</p>`}
    ${metrics.error && metrics.error !== "none" && html`<p class="notice">No metrics: ${metrics.error}${missing(["read"], "*") && html` (needs <code>read:*</code>)`}</p>`}
    <h2>Written last</h2>
    ${recent.error && html`<p role="alert" class="error">${recent.error}</p>`}
    ${!recent.all && html`<p class="hint">Of the first ${LOOKED_AT} streams by name.</p>`}
    <table class="streams">
      <thead><tr><th scope="col">stream</th><th scope="col">state</th><th scope="col">size</th><th scope="col">last write</th></tr></thead>
      <tbody>
        ${recent.streams.map((each) => html`<tr key=${each.stream_id}>
          <td><a href=${linkTo(pathOf("v1", each.stream_id))}>${each.stream_id}</a></td>
          <td>${each.status.toLowerCase()}</td><td>${bytes(each.tail_offset)}</td><td>${ago(each.last_write_at_ms)}</td>
        </tr>`)}
      </tbody>
    </table>
    ${!recent.streams.length && !recent.error && html`<p class="hint">There are no plain streams yet. <a href="#/streams">Create one.</a></p>`}
  </main>`
}
