// One stream: its messages as they come, what is known of it, and what can be done with it.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./preact-hooks.js"
import { getJson, missing, placeOf, recorded, token } from "./api.js"
import { ActionDialog, Code, Copy, Dialog } from "./dialogs.js"
import { bytes, counted, duration, number, time } from "./format.js"
import { html } from "./html.js"
import { JsonTree } from "./json-tree.js"
import { linkTo, parseAddress, replaceQuery } from "./links.js"
import { VirtualList } from "./list.js"
import { useLoaded } from "./loading.js"
import { Messages, dump, kindOf, renderOffset } from "./messages.js"
import { readSnippets } from "./snippets.js"
import { Pace, Rate } from "./pace.js"
import { RunningText } from "./running-text.js"
import { Ago } from "./server.js"
import { Tail, isFinal } from "./tail.js"

const STATS_EVERY_MS = 5000
const ANNOUNCE_EVERY_MS = 5000
const PREVIEW_BYTES = 300
const DETAIL_BYTES = 256 * 1024
const DEFAULT_LAST = "1000"
const RUNNING_BYTES = 64 * 1024
const STATES = {
  connecting: "◌ connecting",
  live: "● live",
  reconnecting: "▲ connection lost, trying again",
  closed: "■ closed: nothing more comes",
  stopped: "✕ stopped",
}

function Card({ title, children }) {
  return html`<div class="card"><h3>${title}</h3>${children}</div>`
}

function Expiry({ expiry }) {
  const [, tick] = useState(0)
  useEffect(() => {
    const timer = setInterval(() => tick((old) => old + 1), 1000)
    return () => clearInterval(timer)
  }, [])
  return html`<p>in ${duration(expiry.ends_at_ms - Date.now())}</p><p class="hint">${expiry.ttl_seconds === null ? "at a fixed time" : `after ${expiry.ttl_seconds} s without use`}</p>`
}

// It is shown as text, whatever its type says: as a page it could run scripts.
function Snapshot({ path }) {
  const [shown, setShown] = useState(null)
  async function load() {
    try {
      const response = await recorded(path, { redirect: "manual" })
      if (response.type === "opaqueredirect") setShown("It is too large for this page: follow the redirect of a GET.")
      else setShown((await response.text()).slice(0, DETAIL_BYTES))
    } catch (error) {
      setShown(String(error.message ?? error))
    }
  }
  return html`<p><button onClick=${load}>Show it</button></p>
    ${shown !== null && html`<${Dialog} title="Snapshot" onClose=${() => setShown(null)}><pre class="snapshot">${shown}</pre><//>`}`
}

function Facts({ stats, path }) {
  return html`<div class="cards">
    <${Card} title="Size"><p>${bytes(stats.bytes)}</p><p class="hint">${stats.messages.exact ? "" : "about "}${counted(stats.messages.count, "message")}</p><//>
    <${Card} title="Last write"><p><${Ago} at=${stats.last_write_at_ms} /></p><p class="hint">created ${time(stats.created_at_ms)}</p><//>
    <${Card} title="Offsets"><p><code>${stats.tail_offset}</code></p><p class="hint">first retained <code>${stats.retained_offset}</code></p>${stats.packed_offset && html`<p class="hint">packed up to <code>${stats.packed_offset}</code></p>`}<//>
    ${stats.status === "Closed" && html`<${Card} title="Closed"><p>${stats.closed_by ? html`by <code>${stats.closed_by.id}</code>` : "without a producer"}</p><//>`}
    ${stats.expiry && html`<${Card} title="Expires"><${Expiry} expiry=${stats.expiry} /><//>`}
    ${stats.snapshot &&
    html`<${Card} title="Snapshot"><p>at <code>${stats.snapshot.offset}</code></p><p class="hint">${bytes(stats.snapshot.bytes)}, <${Ago} at=${stats.snapshot.published_at_ms} /></p><${Snapshot} key=${stats.snapshot.offset} path=${`${path}/snapshot/${stats.snapshot.offset}`} /><//>`}
    ${(stats.forked_from || stats.forks > 0) &&
    html`<${Card} title="Forks">${stats.forked_from && html`<p>of <a href=${linkTo(stats.forked_from.stream)}>${stats.forked_from.stream}</a><br />at <code>${stats.forked_from.offset}</code></p>`}<p class="hint">${stats.forks} made of it</p><//>`}
    ${stats.producers.length > 0 &&
    html`<${Card} title="Producers">
      <table class="small"><thead><tr><th scope="col">id</th><th scope="col">epoch</th><th scope="col">seq</th></tr></thead>
      <tbody>${stats.producers.slice(-8).map((each) => html`<tr key=${each.id}><td>${each.id}</td><td>${each.epoch}</td><td>${each.seq}</td></tr>`)}</tbody></table>
      ${stats.producers.length > 8 && html`<p class="hint">and ${stats.producers.length - 8} more</p>`}
    <//>`}
  </div>`
}

function Detail({ path, message, kind }) {
  const [view, setView] = useState(kind)
  const offset = renderOffset(message.offset)
  const shown = message.bytes.subarray(0, DETAIL_BYTES)
  const text = new TextDecoder().decode(shown)
  let value
  let fault = ""
  if (view === "json") {
    try {
      value = JSON.parse(text)
    } catch (error) {
      fault = shown.length < message.bytes.length ? "Too large to show as a tree." : `This is no JSON: ${error.message}`
    }
  }
  const link = new URL(linkTo(path, { at: offset }), location.href).href
  return html`<section class="detail" aria-label="Message">
    <div class="dialog-head">
      <h2>Offset <code>${offset}</code></h2>
      <span><${Copy} text=${offset} label="Copy the offset" /> <${Copy} text=${link} label="Copy a link" /></span>
    </div>
    <div class="tabs" role="group" aria-label="View">
      ${["json", "text", "binary"].map((name) => html`<button key=${name} aria-pressed=${name === view ? "true" : "false"} onClick=${() => setView(name)}>${name === "binary" ? "hex" : name}</button>`)}
      <span class="hint">${bytes(message.bytes.length)}</span>
    </div>
    <div class="message" tabindex="0" aria-label="The message">
      ${view === "json" && !fault ? html`<${JsonTree} value=${value} />` : html`<pre>${fault || (view === "binary" ? dump(shown) : text)}</pre>`}
    </div>
    ${shown.length < message.bytes.length && html`<p class="hint">The first ${bytes(DETAIL_BYTES)} of it.</p>`}
  </section>`
}

function Start({ path, onStart }) {
  const [kind, setKind] = useState("last")
  const [value, setValue] = useState(DEFAULT_LAST)
  const [error, setError] = useState("")
  const needs = { last: "messages", offset: "offset", from: "local time" }[kind]

  async function start(event) {
    event.preventDefault()
    try {
      onStart(await resolveStart(path, kind, value), kind === "last" || kind === "now")
      setError("")
    } catch (refused) {
      setError(refused.message)
    }
  }

  return html`<form class="start" onSubmit=${start}>
    <label>Start at
      <select name="start" value=${kind} onChange=${(event) => { setKind(event.currentTarget.value); setValue({ last: DEFAULT_LAST }[event.currentTarget.value] ?? "") }}>
        <option value="beginning">the beginning</option><option value="last">the last …</option>
        <option value="from">a time …</option><option value="offset">an offset …</option><option value="now">now</option>
      </select>
    </label>
    ${needs && html`<label>${needs}<input name="start-value" type=${kind === "from" ? "datetime-local" : "text"} value=${value} onInput=${(event) => setValue(event.currentTarget.value)} /></label>`}
    <button type="submit">Read</button>
    <span role="alert" class="error">${error}</span>
  </form>`
}

// An offset to read from.
async function resolveStart(path, kind, value) {
  if (kind === "now") return "now"
  if (kind === "offset") return value.trim()
  if (kind === "beginning") return (await getJson(`/v1/stats?${new URLSearchParams({ stream: path })}`)).retained_offset
  const asked = kind === "last" ? { last: value } : { from: new Date(value).toISOString() }
  return (await getJson(`/v1/start?${new URLSearchParams({ stream: path, ...asked })}`)).offset
}

const CONNECTING = { of: null, name: "connecting", error: null }

// The messages of a stream from `start` on, while the page is open. With another `round` or token they are read anew.
function useTail(path, start, kind, round) {
  const [version, setVersion] = useState(0)
  const [told, setTold] = useState(CONNECTING)
  const held = useMemo(() => ({ messages: kind && new Messages(kind), rate: new Rate(), asked: false }), [path, start, kind, round, token.value])
  // What the reader before told says nothing of this one.
  const state = told.of === held ? told : CONNECTING

  useEffect(() => {
    if (!kind || start === null) return undefined
    const show = () => {
      held.asked = false
      setVersion((old) => old + 1)
    }
    const tail = new Tail(path, start, {
      onChunk(chunk, next, isNew) {
        const count = held.messages.add(chunk, next)
        if (isNew) held.rate.add(kind === "json" ? count : chunk.length)
        // Once a frame; a page in the background has none, and shows all when it is seen again.
        if (!held.asked) held.asked = requestAnimationFrame(show)
      },
      onState: (name, error = null) => setTold((old) => (old.of === held && old.name === name && !error ? old : { of: held, name, error })),
    })
    tail.run()
    return () => tail.stop()
  }, [held])

  return { ...held, version, state }
}

// Numbers of the messages that contain the text, looked for only among those that are new since the last time, and in the
// last one before, which may have grown.
function useFilter(messages, filter, version) {
  const found = useRef({ messages: null, filter: "", numbers: [], seen: 0 })
  if (!filter || !messages) return null
  const state = found.current
  if (state.messages !== messages || state.filter !== filter) Object.assign(state, { messages, filter, numbers: [], seen: messages.first })
  const wanted = filter.toLowerCase()
  for (let each = Math.max(state.seen, messages.first); each < messages.end; each++) if (state.numbers.at(-1) !== each && messages.text(each).toLowerCase().includes(wanted)) state.numbers.push(each)
  state.seen = messages.end - 1
  while (state.numbers.length && state.numbers[0] < messages.first) state.numbers.shift()
  return state.numbers
}

function Announcer({ messages, version }) {
  const [said, setSaid] = useState("")
  const last = useRef({ end: 0, at: 0 })
  useEffect(() => {
    const wait = Math.max(0, last.current.at + ANNOUNCE_EVERY_MS - Date.now())
    const timer = setTimeout(() => {
      const fresh = (messages?.end ?? 0) - last.current.end
      if (fresh > 0) setSaid(counted(fresh, "new message"))
      last.current = { end: messages?.end ?? 0, at: Date.now() }
    }, wait)
    return () => clearTimeout(timer)
  }, [version])
  return html`<p class="unseen" aria-live="polite" id="announcer">${said}</p>`
}

export function StreamPage({ path }) {
  const place = placeOf(path)
  const [{ found: stats, error }, reload] = useLoaded((signal) => getJson(`/v1/stats?${new URLSearchParams({ stream: path })}`, signal), path, { everyMs: STATS_EVERY_MS, keepsFound: true })
  const [start, setStart] = useState(null)
  const [round, setRound] = useState(0)
  const [paused, setPaused] = useState(null)
  const [follow, setFollow] = useState(true)
  const [filter, setFilter] = useState("")
  const [isRunning, setIsRunning] = useState(false)
  const [selected, setSelected] = useState(null)
  const [action, setAction] = useState("")
  const [notice, setNotice] = useState("")
  const kind = stats && kindOf(stats.content_type)
  const { messages, rate, version, state } = useTail(path, start, kind, round)
  const matches = useFilter(messages, filter, version)

  useEffect(() => {
    const at = parseAddress(location.hash).query.get("at")
    let timer = null
    let isGone = false
    // Where the server is away the end is looked for again: a stream may be long, and its beginning is not asked for.
    const findStart = () =>
      resolveStart(path, "last", DEFAULT_LAST).then(
        (found) => isGone || setStart(found),
        (refused) => isGone || (isFinal(refused) ? setStart(renderOffset(0)) : (timer = setTimeout(findStart, STATS_EVERY_MS))),
      )
    setStart(at)
    // An address that names a message shows it, and not the end.
    setSelected(at ? 0 : null)
    setFollow(!at)
    if (!at) findStart()
    return () => {
      isGone = true
      clearTimeout(timer)
    }
  }, [path, token.value])

  useEffect(() => {
    // What lay there was folded into a snapshot: the reader goes on behind it.
    if (state.error?.status !== 410 || !stats) return
    setNotice(`What was before ${stats.retained_offset} is no longer kept${stats.snapshot ? ": the snapshot holds it" : ""}.`)
    if (start !== stats.retained_offset) setStart(stats.retained_offset)
  }, [state, stats])

  const end = paused ?? messages?.end ?? 0
  const first = messages?.first ?? 0
  const numbers = matches && matches.filter((each) => each < end)
  const count = numbers ? numbers.length : Math.max(0, end - first)
  const numberAt = (row) => (numbers ? numbers[row] : row)
  const listFirst = numbers ? 0 : first
  const message = selected === null || !messages ? null : messages.at(numberAt(selected))
  const fresh = paused === null ? 0 : messages.end - paused

  const togglePause = () => {
    messages?.breakLine()
    setPaused((old) => (old === null ? (messages?.end ?? 0) : null))
  }
  const startAt = (offset, isEnd) => {
    setStart(offset)
    setRound((old) => old + 1)
    setPaused(null)
    setSelected(isEnd ? null : 0)
    setFollow(isEnd)
    setNotice("")
    replaceQuery({ at: isEnd ? null : offset })
  }
  const goToEnd = () => {
    setPaused(null)
    setSelected(null)
    setFollow(true)
  }
  const select = (row) => {
    setSelected(row)
    setFollow(false)
  }

  useEffect(() => {
    if (message) replaceQuery({ at: renderOffset(message.offset) })
  }, [message?.offset])

  useLayoutEffect(() => {
    function onKey({ detail: key }) {
      const step = { j: 1, k: -1 }[key]
      const last = listFirst + count - 1
      // Keys may come faster than the page is drawn, so each goes on from what the one before has selected.
      if (step && count) select((old) => (old === null ? (step > 0 ? listFirst : last) : Math.max(listFirst, Math.min(last, old + step))))
      if (key === "p") togglePause()
      if (key === "g") goToEnd()
    }
    addEventListener("console-key", onKey)
    return () => removeEventListener("console-key", onKey)
  })

  if (error && !stats) {
    const lacks = missing(["read"], place.bucket, place.streamId)
    return html`<main id="main" tabindex="-1"><h1>${place.streamId}</h1><p role="alert" class="error">${error.message}${lacks && html` – the token lacks <code>${lacks}</code>`}</p>
      <p class="hint">This page looks again every ${STATS_EVERY_MS / 1000} s.${error.status === 404 && html` <a href=${`#/streams?${new URLSearchParams({ bucket: place.bucket, prefix: place.streamId })}`}>Look for others, or create it</a>`}</p></main>`
  }
  return html`<main id="main" tabindex="-1" class="stream">
    <div class="page-head">
      <h1>${place.streamId}</h1>
      <span class="badges">${place.bucket !== "v1" && html`<span class="badge">bucket ${place.bucket}</span>`}
      <span class="badge" id="content-type">${stats?.content_type ?? "…"}</span>
      <span class="badge" id="state">${STATES[state.name]}</span></span>
      ${kind && html`<${Pace} rate=${rate} kind=${kind} />`}
    </div>
    ${notice && html`<p class="notice" role="status">${notice}</p>`}
    ${state.name === "stopped" && state.error?.status !== 410 && html`<p role="alert" class="error">${state.error?.message}</p>`}
    ${stats && html`<${Facts} stats=${stats} path=${path} />`}
    <${Actions} path=${path} place=${place} stats=${stats} message=${message} onAction=${setAction} />
    <div class="toolbar">
      <${Start} path=${path} onStart=${startAt} />
      <label>Only with<input id="search" type="search" value=${filter} onInput=${(event) => { setFilter(event.currentTarget.value); setSelected(null) }} autocomplete="off" spellcheck=${false} /></label>
      <button onClick=${togglePause} aria-pressed=${paused === null ? "false" : "true"}>${paused === null ? "Pause" : `Go on (${number(fresh)} new)`}</button>
      <button onClick=${goToEnd}>Go to the end</button>
      ${kind === "text" && html`<button aria-pressed=${isRunning ? "true" : "false"} onClick=${() => setIsRunning(!isRunning)}>As running text</button>`}
    </div>
    <p class="hint" id="counted">${filter ? `${number(count)} of ` : ""}${counted(end - first, { json: "message", text: "line", binary: "row" }[kind] ?? "message")} held${state.name === "live" && !end ? "; what is appended is shown here" : ""}${first > 0 ? `; ${number(first)} older ones were dropped, start earlier to see them` : ""}</p>
    <${Announcer} messages=${messages} version=${version} />
    <div class=${message ? "split open" : "split"}>
      ${isRunning && !filter
        ? html`<${RunningText} text=${messages.tailText(end, RUNNING_BYTES)} />`
        : html`<${VirtualList}
            label="Messages"
            first=${listFirst}
            count=${count}
            selected=${selected}
            onSelect=${select}
            follow=${follow && paused === null}
            onFollow=${setFollow}
            renderRow=${(row) => {
              const each = messages.at(numberAt(row))
              return each && html`<code class="offset">${renderOffset(each.offset)}</code><span class="preview">${messages.text(each.number, PREVIEW_BYTES)}</span>`
            }}
          />`}
      ${message && html`<${Detail} key=${message.number} path=${path} message=${message} kind=${kind} />`}
    </div>
    ${action && stats && html`<${Action} name=${action} path=${path} place=${place} stats=${stats} message=${message} onDone=${reload} onClose=${() => setAction("")} />`}
  </main>`
}

const ACTIONS = [
  { name: "append", title: "Append", rights: ["write"] },
  { name: "close", title: "Close", rights: ["write"] },
  { name: "fork", title: "Fork here", rights: ["write", "manage"] },
  { name: "snapshot", title: "Snapshot", rights: ["manage"] },
  { name: "delete", title: "Delete", rights: ["manage"] },
]

function Actions({ place, stats, onAction }) {
  return html`<div class="actions" role="group" aria-label="Actions">
    <button onClick=${() => onAction("read")}>Read by code</button>
    ${ACTIONS.map(({ name, title, rights }) => {
      const lacks = missing(rights, place.bucket, place.streamId)
      const why =
        (lacks && `needs ${lacks}`) ||
        (name === "snapshot" && place.bucket === "v1" && "only in a bucket") ||
        (stats?.status === "Closed" && (name === "append" || name === "close") && "the stream is closed")
      return html`<button key=${name} class=${name === "delete" ? "danger" : ""} disabled=${Boolean(why)} onClick=${() => onAction(name)}>${title}${why && html` <small>(${why})</small>`}</button>`
    })}
  </div>`
}

function Action({ name, path, place, stats, message, onDone, onClose }) {
  const type = stats.content_type
  const here = message ? renderOffset(message.offset + message.bytes.length + (kindOf(type) === "json" ? 1 : 0)) : stats.tail_offset
  if (name === "read") {
    const offset = message ? renderOffset(message.offset) : "-1"
    return html`<${Dialog} title="Read by code" onClose=${onClose}><p>Everything from ${offset === "-1" ? "the beginning" : html`offset <code>${offset}</code>`} on, and what comes.</p><${Code} versions=${readSnippets(path, offset, { hasToken: Boolean(token.value) })} /><//>`
  }
  const { title, rights } = ACTIONS.find((each) => each.name === name)
  const shared = { title, rights, onClose, onDone }
  if (name === "append") {
    const fields = [
      { name: "body", label: kindOf(type) === "json" ? "JSON: a value is one message, an array one for each element" : "Text", kind: "text" },
      { name: "file", label: "or a file", kind: "file" },
    ]
    return html`<${ActionDialog} ...${shared} fields=${fields} build=${(values) => ({ method: "POST", path, headers: { "Content-Type": type }, body: values.body })} />`
  }
  if (name === "close") {
    return html`<${ActionDialog} ...${shared} note="Nothing can be appended afterwards. Readers learn that this is the end." build=${() => ({ method: "POST", path, headers: { "Stream-Closed": "true" } })} />`
  }
  if (name === "fork") {
    const fields = [{ name: "to", label: "Name of the fork", initial: `${place.streamId}-fork` }, { name: "offset", label: "At the offset", initial: here }]
    const build = (values) => ({ method: "PUT", path: path.replace(/[^/]*$/, "") === "/v1/stream/" || place.bucket === "v1" ? `/v1/stream/${values.to.split("/").map(encodeURIComponent).join("/")}` : `/${place.bucket}/${encodeURIComponent(values.to)}`, headers: { "Stream-Forked-From": path, "Stream-Fork-Offset": values.offset } })
    return html`<${ActionDialog} ...${shared} fields=${fields} build=${build} onDone=${(_, request) => { location.hash = linkTo(request.path) }} />`
  }
  if (name === "snapshot") {
    const fields = [{ name: "offset", label: "At the offset", initial: here }, { name: "type", label: "Content type", initial: "application/json" }, { name: "body", label: "What lies before it, folded", kind: "text" }]
    return html`<${ActionDialog} ...${shared} fields=${fields} note="The messages before it can then no longer be read." build=${(values) => ({ method: "PUT", path: `${path}/snapshot/${values.offset}`, headers: { "Content-Type": values.type }, body: values.body })} />`
  }
  return html`<${ActionDialog} ...${shared} confirm=${place.streamId} note="The stream and its messages are gone for good." build=${() => ({ method: "DELETE", path })} onDone=${() => { location.hash = "#/streams" }} />`
}
