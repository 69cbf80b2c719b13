// Subscriptions: who is woken by which streams, and whether that works.
import { useState } from "./preact-hooks.js"
import { getJson, missing, pathOf, send } from "./api.js"
import { ActionDialog, First } from "./dialogs.js"
import { bytes, counted, number, time } from "./format.js"
import { NameLink, html } from "./html.js"
import { linkTo, parseAddress, replaceQuery } from "./links.js"
import { useLoaded } from "./loading.js"
import { Ago, Left } from "./server.js"

const ROOT = "/v1/stream/__ds/subscriptions"
const POLLED = { everyMs: 3000, pauseMs: 250 }
const PAGE = 50
const MAX_STREAMS = 100
// Of so many streams the tails are asked for, so often.
const MAX_TAILS = 20
const TAIL_EVERY_MS = 10_000
const TEST_SECONDS = 3600
const STATES = {
  idle: "● idle: nothing is pending",
  delivering: "◌ being delivered",
  retrying: "▲ failing",
  leased: "◐ accepted: the webhook calls back later",
  announced: "◌ announced: no worker has claimed it yet",
  claimed: "◐ claimed",
}

const pathTo = (id) => `${ROOT}/${encodeURIComponent(id)}`
const placeTo = (id) => ({ bucket: "v1", streamId: `__ds/subscriptions/${id}` })
const linkToSubscription = (id) => `#/subscriptions?${new URLSearchParams({ id })}`
const until = (instant) => html`<${Left} until=${Date.parse(instant)} />`

function State({ type, wake }) {
  if (type === "shared") return "◐ shared: workers take its messages"
  return html`${STATES[wake.state] ?? wake.state}
    ${wake.state === "retrying" && html`<span class="hint">, ${wake.attempts} ${wake.attempts === 1 ? "attempt" : "attempts"}; the next in ${until(wake.next_attempt_at)}</span>`}
    ${wake.state === "claimed" && html`<span class="hint"> by ${wake.holder}</span>`}
    ${wake.lease_until && wake.state !== "retrying" && html`<span class="hint">, lease for ${until(wake.lease_until)}</span>`}`
}

const FIELDS = [
  { name: "id", label: "Id" },
  { name: "type", label: "Kind", choices: ["webhook", "pull-wake"], initial: "webhook" },
  { name: "pattern", label: "Streams that it follows", initial: "tasks/*", hint: "* is one segment of a name, ** any number of them." },
  { name: "to", label: "Webhook's URL, or the wake stream's name", hint: "A wake stream is a JSON stream, which you create." },
  { name: "lease", label: "Lease in seconds", initial: "30" },
  { name: "attempts", label: "Attempts until it gives up", hint: "Empty: it never does." },
  { name: "letters", label: "Stream that is told what it gave up", hint: "A JSON stream, which you create." },
]

const EXAMPLE = { id: "tasks", type: "webhook", pattern: "tasks/*", to: "https://example.com/hook", lease: 30 }

function buildCreation({ id, type, pattern, to, lease, attempts = "", letters = "" }) {
  const target = type === "webhook" ? { webhook: { url: to } } : { wake_stream: to }
  const givesUp = attempts || letters ? { max_attempts: Number(attempts), dead_letter_stream: letters } : {}
  const body = JSON.stringify({ type, pattern, ...target, lease_ttl_ms: Math.round(Number(lease) * 1000), ...givesUp })
  return { method: "PUT", path: pathTo(id), headers: { "Content-Type": "application/json" }, body }
}

export function Subscriptions({ query }) {
  const id = query.get("id")
  return id ? html`<${Subscription} key=${id} id=${id} />` : html`<${List} />`
}

function List() {
  const [prefix, setPrefix] = useState(parseAddress(location.hash).query.get("prefix") ?? "")
  const [cursors, setCursors] = useState([""])
  const [isCreating, setIsCreating] = useState(false)
  const asked = new URLSearchParams({ prefix, limit: PAGE, after: cursors.at(-1) })
  const [{ found, error, key }] = useLoaded((signal) => {
    replaceQuery({ prefix: prefix || null })
    return getJson(`${ROOT}?${asked}`, signal)
  }, String(asked), POLLED)
  const lacks = missing(["write", "manage"], "v1", `__ds/subscriptions/${prefix}`)
  return html`<main id="main" tabindex="-1">
    <div class="page-head"><h1>Subscriptions</h1><button class="primary" onClick=${() => setIsCreating(true)}>Create a subscription</button></div>
    <p class="hint">A subscription calls your webhook, or wakes a worker, when one of its streams has something new.</p>
    <form class="toolbar" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label>Id begins with
        <input id="search" name="prefix" type="search" value=${prefix} onInput=${(event) => { setPrefix(event.currentTarget.value); setCursors([""]) }} autocomplete="off" spellcheck=${false} />
      </label>
    </form>
    ${error && html`<p role="alert" class="error">${error.message}${lacks && html` – the token lacks <code>${lacks}*</code>`}</p>`}
    <div class="wide" hidden=${!found?.subscriptions.length}>
    <table class="streams">
      <thead><tr><th scope="col">subscription</th><th scope="col">kind</th><th scope="col">follows</th><th scope="col">state</th><th scope="col">wakes so far</th><th scope="col">last delivery</th></tr></thead>
      <tbody>
        ${(found?.subscriptions ?? []).map((each) => html`<tr key=${each.id}>
          <td><${NameLink} href=${linkToSubscription(each.id)} name=${each.id} /></td>
          <td>${each.type}</td><td>${each.pattern ? html`<code>${each.pattern}</code>` : "streams by name"}</td>
          <td><${State} ...${each} /></td><td>${number(each.wake.generation)}</td><td>${each.wake.last_delivery_at ? html`<${Ago} at=${Date.parse(each.wake.last_delivery_at)} />` : "never"}</td>
        </tr>`)}
      </tbody>
    </table>
    </div>
    <p role="status" class="hint">${found ? (found.subscriptions.length ? `${counted(found.subscriptions.length, "subscription")} on page ${number(cursors.length)}` : prefix ? "No subscription has an id that begins like this." : "There are no subscriptions yet.") : error ? "" : "Loading…"}</p>
    ${found && !found.subscriptions.length && !prefix && html`<${First} what="subscription" request=${buildCreation(EXAMPLE)} />`}
    ${(cursors.at(-1) || found?.has_more) && html`<nav class="paging" aria-label="Pages of the list">
      <button disabled=${cursors.length < 2} onClick=${() => setCursors(cursors.slice(0, -1))}>Previous page</button>
      <button disabled=${key !== String(asked) || !found?.has_more} onClick=${() => setCursors([...cursors, found.next_cursor])}>Next page</button>
    </nav>`}
    ${isCreating &&
    html`<${ActionDialog} title="Create a subscription" rights=${["manage"]} place=${(values) => placeTo(values.id)} fields=${FIELDS} build=${buildCreation}
      onDone=${(_, __, values) => { location.hash = linkToSubscription(values.id) }} onClose=${() => setIsCreating(false)} />`}
  </main>`
}

const ACTIONS = { test: "Test", wake: "Wake now", delete: "Delete" }

function Subscription({ id }) {
  const [{ found, error }, reload] = useLoaded((signal) => getJson(pathTo(id), signal), id, POLLED)
  const [action, setAction] = useState("")
  return html`<main id="main" tabindex="-1">
    <p><a href="#/subscriptions">All subscriptions</a></p>
    <h1>${id}</h1>
    ${error && html`<p role="alert" class="error">${error.message}</p>`}
    ${found && html`<div class="actions">${Object.entries(ACTIONS).filter(([name]) => name !== "wake" || !found.shared).map(([name, title]) => html`<button key=${name} class=${name === "delete" ? "danger" : ""} onClick=${() => setAction(name)}>${title}</button>`)}</div>`}
    ${found && html`<${Facts} subscription=${found} /><${Links} subscription=${found} />`}
    ${found && action && html`<${Action} name=${action} subscription=${found} onDone=${reload} onClose=${() => setAction("")} />`}
  </main>`
}

function Card({ title, children }) {
  return html`<div class="card"><h2>${title}</h2>${children}</div>`
}

const lastDelivery = (wake) => (wake.last_delivery_at ? html`last delivered <${Ago} at=${Date.parse(wake.last_delivery_at)} />` : "never delivered so far")

function Facts({ subscription }) {
  const { type, wake, webhook, wake_stream: wakeStream, shared } = subscription
  return html`<div class="cards">
    <${Card} title="State"><p id="wake-state"><${State} type=${type} wake=${wake} /></p>${!shared && html`<p class="hint">generation ${wake.generation}</p><p class="hint" id="last-delivery">${lastDelivery(wake)}</p>`}<//>
    ${shared && html`<${Card} title="Messages"><p id="under-way">${counted(shared.under_way, "message")} under way, ${number(shared.waiting)} waiting</p><p class="hint">${number(shared.deliveries)} deliveries${shared.key && html`, in order of <code>${shared.key}</code>`}${shared.oldest_lease_until && html`; the oldest lease for ${until(shared.oldest_lease_until)}`}</p><//>`}
    ${webhook && html`<${Card} title="Webhook"><p><code>${webhook.url}</code></p>${webhook.signing && html`<p class="hint">signed with <code>${webhook.signing.kid}</code> (<a href="stream/__ds/jwks.json">the public keys</a>)</p>`}<//>`}
    ${wakeStream && html`<${Card} title="Wake stream"><p><a href=${linkTo(pathOf("v1", wakeStream))}>${wakeStream}</a></p><//>`}
    <${Card} title="Follows"><p>${subscription.pattern ? html`<code>${subscription.pattern}</code>` : "streams by name"}</p><//>
    <${Card} title="Lease"><p>${subscription.lease_ttl_ms / 1000} s</p><p class="hint">created ${time(Date.parse(subscription.created_at))}</p><//>
    ${subscription.max_attempts && html`<${Card} title="Dead letters"><p><a href=${linkTo(pathOf("v1", subscription.dead_letter_stream))}>${subscription.dead_letter_stream}</a></p><p class="hint">after ${counted(subscription.max_attempts, "attempt")} in vain</p><//>`}
    ${subscription.description && html`<${Card} title="Description"><p>${subscription.description}</p><//>`}
  </div>`
}

// How much of a stream is not processed yet.
function Pending({ stream }) {
  const path = pathOf("v1", stream.path)
  const [{ found: tail, error }] = useLoaded(async (signal) => (await send({ method: "HEAD", path }, signal)).headers.get("Stream-Next-Offset"), `${path} ${stream.acked_offset}`, { everyMs: TAIL_EVERY_MS })
  const count = Number(tail) - Math.max(0, Number(stream.acked_offset))
  return error?.status === 404 ? "the stream is gone" : tail === null ? "…" : count > 0 ? bytes(count) : "nothing"
}

function Links({ subscription }) {
  const shown = subscription.streams.slice(0, MAX_STREAMS)
  const isCut = shown.length < subscription.streams.length || subscription.streams_after
  return html`<h2>Streams</h2>
    <div class="wide"><table class="streams">
      <thead><tr><th scope="col">stream</th><th scope="col">why</th><th scope="col">processed up to</th><th scope="col">pending</th></tr></thead>
      <tbody>${shown.map((each, index) => html`<tr key=${each.path}><td><${NameLink} href=${linkTo(pathOf("v1", each.path))} name=${each.path} /></td><td>${each.link_type === "glob" ? "matches the pattern" : "named"}</td><td><code>${each.acked_offset}</code></td><td>${index < MAX_TAILS && html`<${Pending} stream=${each} />`}</td></tr>`)}</tbody>
    </table></div>
    <p class="hint">${isCut ? `The first ${shown.length} by name.` : shown.length ? "" : "No stream yet: one that matches is followed from its first message on."}</p>`
}

// A name that the pattern matches: a star is a whole segment, and %2A is one that means itself.
const matching = (pattern, word) => pattern.split("/").map((part) => (part === "*" || part === "**" ? word : part.replace(/%2A/gi, "*"))).join("/")

// A stream that the subscription follows: one of a new name where there is a pattern.
function buildTest(subscription, { to, body }) {
  const headers = { "Content-Type": "application/json" }
  const path = pathOf("v1", to)
  return subscription.pattern ? { method: "PUT", path, headers: { ...headers, "Stream-TTL": String(TEST_SECONDS) }, body } : { method: "POST", path, headers, body }
}

function Action({ name, subscription, onDone, onClose }) {
  const { id, pattern } = subscription
  const [unique] = useState(() => `console-test-${Date.now().toString(36)}`)
  const shared = { title: ACTIONS[name], onClose, onDone, place: () => placeTo(id) }
  if (name === "wake") {
    return html`<${ActionDialog} ...${shared} rights=${["manage"]} note="Delivers what is pending now, without waiting for the next attempt." build=${() => ({ method: "POST", path: `${pathTo(id)}/wake` })} />`
  }
  if (name === "delete") {
    return html`<${ActionDialog} ...${shared} rights=${["manage"]} confirm=${id} note="It wakes nobody any more and forgets how far its streams were processed. The streams stay." build=${() => ({ method: "DELETE", path: pathTo(id) })} onDone=${() => { location.hash = "#/subscriptions" }} />`
  }
  const fields = [
    { name: "to", label: "Stream", initial: pattern ? matching(pattern, unique) : (subscription.streams[0]?.path ?? "") },
    { name: "body", label: "Message", kind: "text", initial: '{"test":true}' },
  ]
  const note = `${pattern ? "A stream that the subscription follows, which ends by itself in an hour, with one message." : "One message more in a stream that the subscription follows."} Its delivery is the real one: the state on this page says what came of it.`
  return html`<${ActionDialog} ...${shared} place=${undefined} rights=${["write"]} fields=${fields} note=${note} build=${(values) => buildTest(subscription, values)} />`
}
