// Whether the server is well, what it does over time, and which streams want a look.
import { getJson, missing, pathOf, send, silentSince } from "./api.js"
import { Chart } from "./chart.js"
import { FirstStream } from "./dialogs.js"
import { bytes, counted, number, short } from "./format.js"
import { NameLink, html } from "./html.js"
import { linkTo } from "./links.js"
import { useLoaded } from "./loading.js"
import { Ago, Left, complaint, health, showsNumbers } from "./server.js"

const EVERY_MS = 5000
const LOOKED_AT = 100
const SHOWN = 10
const SHOWN_BESIDE = 5
const ofTheFirst = () => html`<small>of the first ${LOOKED_AT} by name</small>`
const SUBSCRIPTIONS = "/v1/stream/__ds/subscriptions"

function parseMetrics(text) {
  const found = new Map()
  for (const line of text.split("\n")) {
    const match = line.match(/^(\w+)(\{[^}]*\})? (\S+)$/)
    if (match) found.set(match[1] + (match[2] ?? ""), Number(match[3]))
  }
  return found
}

// The bound of the bucket in which the share of all observations is reached; "" where nothing was observed.
function quantile(metrics, name, share) {
  const all = metrics.get(`${name}_count`)
  if (!all) return ""
  for (const [key, below] of metrics) {
    const bound = key.startsWith(`${name}_bucket`) && Number(key.match(/le="([^"]+)"/)[1].replace("+Inf", "Infinity"))
    if (bound && below >= share * all) return bound === Infinity ? "> 30 s" : `≤ ${bound * 1000} ms`
  }
}

async function loadNumbers(signal) {
  const [rates, traffic, metrics] = await Promise.all([getJson("/v1/rates", signal), getJson("/v1/traffic", signal), send({ path: "/v1/metrics" }, signal)])
  return { rates, traffic, metrics: parseMetrics(await metrics.text()) }
}

async function loadStreams(signal) {
  const page = await getJson(`/v1/streams?limit=${LOOKED_AT}`, signal)
  const latest = page.streams.sort((one, other) => other.last_write_at_ms - one.last_write_at_ms)
  const expiring = latest.filter((each) => each.expires_at_ms).sort((one, other) => one.expires_at_ms - other.expires_at_ms)
  return { latest, expiring, closed: latest.filter((each) => each.status === "Closed"), isAll: !page.has_more }
}

function Latency({ metrics, name, title }) {
  const [half, most] = [quantile(metrics, name, 0.5), quantile(metrics, name, 0.99)]
  return half && html`<span>${title}: p50 <b>${half}</b>, p99 ${most}</span>`
}

function State({ metrics }) {
  const { version, commit } = health.value ?? {}
  return html`<p class="facts" id="health">
    ${health.value && !complaint.value && !silentSince.value && html`<span class="well">● healthy</span>`}
    ${version && html`<span>version ${version}${commit ? `, ${commit}` : ""}</span>`}
    ${metrics && html`<${Latency} metrics=${metrics} name="tidemark_storage_seconds" title="storage calls" />
      <${Latency} metrics=${metrics} name="tidemark_wake_seconds" title="append to reader" />`}
  </p>`
}

function Charts({ rates }) {
  const times = rates.at_ms.map((each) => each / 1000)
  const perSecond = (name) => rates[name].map((count, index) => (1000 * count) / rates.ms[index])
  if (!times.length) return html`<p class="hint charts-later">The first numbers come within a few seconds.</p>`
  const size = (count) => bytes(Math.round(count)).replace(/bytes?/, "B")
  return html`<div class="charts">
    <${Chart} title="Requests a second" times=${times} show=${short} series=${[{ name: "appends", colour: "first", values: perSecond("appends") }, { name: "reads", colour: "second", values: perSecond("reads") }]} />
    <${Chart} title="Bytes a second" times=${times} show=${size} base=${1024} least=${1024} series=${[{ name: "appended", colour: "first", values: perSecond("append_bytes") }, { name: "read", colour: "second", values: perSecond("read_bytes") }]} />
    <${Chart} title="Waiting readers" times=${times} show=${short} least=${2} series=${[{ name: "waiting", colour: "second", values: rates.waiting }]} />
    <${Chart} title="Errors a second" times=${times} show=${short} series=${[{ name: "refused (4xx)", colour: "warning", values: perSecond("refused") }, { name: "failed (5xx)", colour: "danger", values: perSecond("failed") }]} />
  </div>`
}

const nameOf = ({ bucket_id: bucket, stream_id: id }) => (bucket === undefined || bucket === "v1" ? id : `${bucket}/${id}`)
const To = ({ stream }) => html`<${NameLink} href=${linkTo(pathOf(stream.bucket_id ?? "v1", stream.stream_id))} name=${nameOf(stream)} />`

function Busiest({ traffic: { seconds, streams, left_out: leftOut } }) {
  const perSecond = (count) => short(count / Math.max(seconds, 1))
  const busiest = streams.filter((each) => each.appends + each.reads)
  if (!busiest.length) return null
  return html`<section class="panel"><h2>Busiest <small>in the last ${Math.round(seconds)} s</small></h2>
    <div class="wide"><table class="streams" id="busiest">
      <thead><tr><th scope="col">stream</th><th scope="col" class="of-number">appends/s</th><th scope="col" class="of-number">appended</th><th scope="col" class="of-number">reads/s</th><th scope="col" class="of-number">read</th></tr></thead>
      <tbody>
        ${busiest.slice(0, SHOWN).map((each) => html`<tr key=${nameOf(each)}>
          <td><${To} stream=${each} /></td><td class="of-number">${perSecond(each.appends)}</td><td class="of-number">${bytes(each.append_bytes)}</td><td class="of-number">${perSecond(each.reads)}</td><td class="of-number">${bytes(each.read_bytes)}</td>
        </tr>`)}
      </tbody>
    </table></div>
    ${leftOut > 0 && html`<p class="hint">${counted(leftOut, "request")} to further streams not counted by stream.</p>`}
  </section>`
}

// Of a list that is not whole it cannot be known; then the server has the streams that were written since its start.
function Latest({ found: { latest, isAll }, written = [] }) {
  const rows = isAll ? latest : written.map((each) => ({ ...each, last_write_at_ms: Date.now() - 1000 * each.seconds_ago }))
  if (!rows.length) return null
  return html`<section class="panel"><h2>Written last ${!isAll && html`<small>since the server started</small>`}</h2>
    <div class="wide"><table class="streams" id="latest">
      <thead><tr><th scope="col">stream</th>${isAll && html`<th scope="col" class="of-number">size</th>`}<th scope="col" class="of-number">last write</th></tr></thead>
      <tbody>${rows.slice(0, SHOWN).map((each) => html`<tr key=${nameOf(each)}><td><${To} stream=${each} /></td>${isAll && html`<td class="of-number">${bytes(each.tail_offset)}</td>`}<td class="of-number"><${Ago} at=${each.last_write_at_ms} /></td></tr>`)}</tbody>
    </table></div>
  </section>`
}

// A short list, which is not there where it is empty.
function Beside({ title, rows, isAll = true }) {
  if (!rows.length) return null
  return html`<section class="panel"><h2>${title} ${!isAll && ofTheFirst()}</h2><ul class="beside">${rows.slice(0, SHOWN_BESIDE)}</ul>
    ${rows.length > SHOWN_BESIDE && html`<p class="hint">and ${number(rows.length - SHOWN_BESIDE)} more</p>`}</section>`
}

const row = (key, what, said) => html`<li key=${key}>${what}<span>${said}</span></li>`

function Failing({ streams, subscriptions }) {
  const rows = streams.filter((each) => each.failures).map((each) => row(nameOf(each), html`<${To} stream=${each} />`, html`<span class="error">${counted(each.failures, "request")} refused or failed</span>`))
  for (const { id, wake } of subscriptions.filter((each) => each.wake.state === "retrying"))
    rows.push(row(`subscription ${id}`, html`<a href=${`#/subscriptions?${new URLSearchParams({ id })}`}>${id}</a>`, html`<span class="error">webhook failed ${counted(wake.attempts, "time")}</span>`))
  return html`<${Beside} title="Failing" rows=${rows} />`
}

export function Overview() {
  const shows = showsNumbers.value
  const [{ found: numbers, error }] = useLoaded(async (signal) => (shows ? loadNumbers(signal) : null), `numbers ${shows}`, { everyMs: shows ? EVERY_MS : 0 })
  // A deployment bills a list by the stream, so it is asked for once.
  const everyMs = shows ? 2 * EVERY_MS : 0
  const [streams] = useLoaded(loadStreams, "streams", { everyMs })
  const [subscriptions] = useLoaded((signal) => getJson(`${SUBSCRIPTIONS}?limit=${LOOKED_AT}`, signal), "subscriptions", { everyMs })
  const found = streams.found
  return html`<main id="main" tabindex="-1">
    <h1>Overview</h1>
    <${State} metrics=${numbers?.metrics} />
    ${shows === false && html`<p class="notice">No numbers here: a deployment keeps them in CloudWatch, where its stack has a dashboard. A server of your own shows them to a token with <code>read:*</code>.</p>`}
    ${error?.status && html`<p class="notice" role="alert">No numbers: ${error.message}${missing(["read"], "*") && html` (needs <code>read:*</code>)`}</p>`}
    ${numbers ? html`<${Charts} rates=${numbers.rates} />` : shows !== false && html`<div class="charts-later"></div>`}
    ${streams.error?.status && html`<p role="alert" class="error">${streams.error.message}</p>`}
    <div class="panels">
      <div>${numbers && html`<${Busiest} traffic=${numbers.traffic} />`}
        ${found && (found.latest.length ? html`<${Latest} found=${found} written=${numbers?.traffic.written} />` : html`<${FirstStream} bucket="v1" />`)}</div>
      <div>
        <${Failing} streams=${numbers?.traffic.streams ?? []} subscriptions=${subscriptions.found?.subscriptions ?? []} />
        <${Beside} title="Expiring next" isAll=${found?.isAll} rows=${(found?.expiring ?? []).map((each) => row(each.stream_id, html`<${To} stream=${each} />`, html`in <${Left} until=${each.expires_at_ms} />`))} />
        <${Beside} title="Closed lately" isAll=${found?.isAll} rows=${(found?.closed ?? []).map((each) => row(each.stream_id, html`<${To} stream=${each} />`, html`<${Ago} at=${each.last_write_at_ms} />`))} />
      </div>
    </div>
  </main>`
}
