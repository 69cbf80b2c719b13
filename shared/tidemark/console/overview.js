// Whether the server is well, and which streams were written last.
import { useEffect, useRef, useState } from "./preact-hooks.js"
import { getJson, missing, pathOf, send } from "./api.js"
import { ago, bytes, number } from "./format.js"
import { html } from "./html.js"
import { linkTo } from "./links.js"
import { useLoaded } from "./loading.js"

const EVERY_MS = 3000
const RECENT_EVERY_MS = 10_000
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

// Two looks at the metrics, one after the other.
async function loadMetrics(before, signal) {
  const now = parseMetrics(await (await send({ path: "/v1/metrics" }, signal)).text())
  const at = performance.now()
  return { now, at, before: before?.now ?? null, seconds: before ? (at - before.at) / 1000 : 1 }
}

async function loadRecent(signal) {
  const page = await getJson(`/v1/streams?limit=${LOOKED_AT}`, signal)
  const streams = page.streams.sort((one, other) => other.last_write_at_ms - one.last_write_at_ms).slice(0, RECENT)
  return { streams, all: !page.has_more }
}

function Rows({ streams }) {
  return streams.map((each) => html`<tr key=${each.stream_id}>
    <td><a href=${linkTo(pathOf("v1", each.stream_id))}>${each.stream_id}</a></td>
    <td>${each.status.toLowerCase()}</td><td>${bytes(each.tail_offset)}</td><td>${ago(each.last_write_at_ms)}</td>
  </tr>`)
}

function Busiest({ traffic: { seconds, streams, left_out: leftOut } }) {
  const perSecond = (count) => (count / Math.max(seconds, 1)).toFixed(1)
  return html`<h2>Busiest</h2>
    <p class="hint">What this server process has answered in the last ${Math.round(seconds)} s, this page's own reads with it.${leftOut > 0 && html` ${number(leftOut)} requests to further streams are left out.`}</p>
    ${streams.length
      ? html`<div class="wide"><table class="streams" id="busiest">
          <thead><tr><th scope="col">stream</th><th scope="col">appends a second</th><th scope="col">appended</th><th scope="col">reads a second</th><th scope="col">read</th></tr></thead>
          <tbody>
            ${streams.map((each) => html`<tr key=${pathOf(each.bucket_id, each.stream_id)}>
              <td><a href=${linkTo(pathOf(each.bucket_id, each.stream_id))}>${each.bucket_id === "v1" ? each.stream_id : `${each.bucket_id}/${each.stream_id}`}</a></td>
              <td>${perSecond(each.appends)}</td><td>${bytes(each.append_bytes)}</td><td>${perSecond(each.reads)}</td><td>${bytes(each.read_bytes)}</td>
            </tr>`)}
          </tbody>
        </table></div>`
      : html`<p class="hint">No stream was written or read.</p>`}`
}

export function Overview() {
  const before = useRef(null)
  const [isDeployed, setIsDeployed] = useState(false)
  // A deployment has no numbers of its own, and is not asked for them again, nor for a list that it bills by the stream.
  const everyMs = isDeployed ? 0 : EVERY_MS
  const [{ found: health, error: healthError }] = useLoaded((signal) => getJson("/v1/health", signal), "health", { everyMs })
  const [{ found: numbers, error }] = useLoaded(async (signal) => {
    before.current = await loadMetrics(before.current, signal)
    return { ...before.current, traffic: await getJson("/v1/traffic", signal) }
  }, "numbers", { everyMs })
  const [recent] = useLoaded(loadRecent, "recent", { everyMs: isDeployed ? 0 : RECENT_EVERY_MS })
  useEffect(() => setIsDeployed(error?.status === 404), [error])

  const { now, before: earlier, seconds, traffic } = numbers ?? {}
  const rate = (name) => (earlier ? ((total(now, name) - total(earlier, name)) / seconds).toFixed(1) : "–")
  return html`<main id="main" tabindex="-1">
    <h1>Overview</h1>
    <div class="cards">
      <${Card} title="Health" value=${health?.status ?? healthError?.message ?? "…"} note=${health?.version && `version ${health.version}${health.commit ? `, commit ${health.commit}` : ""}`} />
      ${now &&
      html`<${Card} title="Requests a second" value=${rate("tidemark_requests_total")} note=${`${number(total(now, "tidemark_requests_total"))} since the start`} />
        <${Card} title="Appends a second" value=${rate("tidemark_appends_total")} note=${bytes(total(now, "tidemark_append_bytes_total"))} />
        <${Card} title="Waiting readers" value=${number(total(now, "tidemark_waiting"))} />
        <${Card} title="Time of a storage call" value=${quantile(now, "tidemark_storage_seconds", 0.5)} note=${`99 %: ${quantile(now, "tidemark_storage_seconds", 0.99)}`} />
        <${Card} title="From an append to its reader" value=${quantile(now, "tidemark_wake_seconds", 0.5)} note=${`99 %: ${quantile(now, "tidemark_wake_seconds", 0.99)}`} />
        <${Card} title="Errors of the server" value=${number(total(now, "tidemark_faults_total"))} note="since the start" />`}
    </div>
    ${isDeployed && html`<p class="notice">This deployment keeps its metrics in CloudWatch; the stack has a dashboard. Which streams are busiest is not known: each of its environments sees its own requests alone.</p>`}
    ${error && !isDeployed && html`<p class="notice">No metrics: ${error.message}${missing(["read"], "*") && html` (needs <code>read:*</code>)`}</p>`}
    ${traffic && html`<${Busiest} traffic=${traffic} />`}
    <h2>Written last</h2>
    ${recent.error && html`<p role="alert" class="error">${recent.error.message}</p>`}
    ${recent.found && !recent.found.all && html`<p class="hint">Of the first ${LOOKED_AT} streams by name.</p>`}
    <div class="wide"><table class="streams">
      <thead><tr><th scope="col">stream</th><th scope="col">state</th><th scope="col">size</th><th scope="col">last write</th></tr></thead>
      <tbody><${Rows} streams=${recent.found?.streams ?? []} /></tbody>
    </table></div>
    ${recent.found && !recent.found.streams.length && html`<p class="hint">There are no plain streams yet. <a href="#/streams">Create one.</a></p>`}
  </main>`
}
