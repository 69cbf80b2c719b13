// One stream: its messages as they come, what is known of it, and what can be done with it.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./preact-hooks.js"
import { Action, Actions } from "./actions.js"
import { getJson, missing, needsToken, placeOf, token } from "./api.js"
import { CreateDialog } from "./create.js"
import { Extent, Facts, brought } from "./facts.js"
import { guess, save } from "./file-types.js"
import { counted, number, unescaped } from "./format.js"
import { html, visible } from "./html.js"
import { linkTo, parseAddress, replaceQuery } from "./links.js"
import { VirtualList } from "./list.js"
import { useLoaded } from "./loading.js"
import { Cells, LogHead, Size, columnsOf } from "./log.js"
import { Detail } from "./message.js"
import { kindOf, renderOffset } from "./messages.js"
import { isOfAnother, useFilter, useTail } from "./reading.js"
import { RunningText } from "./running-text.js"
import { Progress, useSearch } from "./search.js"
import { DEFAULT_LAST, Start, resolveStart } from "./start.js"
import { isFinal } from "./tail.js"
import { Appended, Times } from "./times.js"

const STATS_EVERY_MS = 5000
const ANNOUNCE_EVERY_MS = 5000
const PREVIEW_BYTES = 300
const RUNNING_BYTES = 64 * 1024
// The first is the one that is shown unless another is asked for.
const VIEWS = { json: [["columns", "Columns"], ["raw", "Raw"]], text: [["text", "Text"], ["lines", "Lines"]] }

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

function Row({ messages, times, number, columns, isRaw }) {
  const message = times.messageAt(number)
  if (!message) return null
  const preview = messages.text(number, PREVIEW_BYTES)
  return html`<code class="offset">${message.gapped ? "≥" : ""}${renderOffset(message.offset)}</code>
    ${messages.kind !== "binary" && html`<${Appended} times=${times} number=${number} /><${Size} count=${message.bytes.length} />`}
    ${columns.length ? html`<${Cells} messages=${messages} number=${number} columns=${columns} />` : html`<span class="preview">${messages.kind === "json" && !isRaw ? unescaped(preview) : preview}</span>`}`
}

// A stream that cannot be shown.
function Unavailable({ place, error, onCreated }) {
  const [isCreating, setIsCreating] = useState(false)
  const lacks = missing(["read"], place.bucket, place.streamId)
  const others = `#/streams?${new URLSearchParams({ bucket: place.bucket, prefix: place.streamId })}`
  return html`<main id="main" tabindex="-1"><h1>${place.streamId}</h1><p role="alert" class="error">${error.message}${lacks && !needsToken.value && html` – the token lacks <code>${lacks}</code>`}</p>
    <p class="hint">This page looks again every ${STATS_EVERY_MS / 1000} s.</p>
    ${error.status === 404 && html`<p><button class="primary" onClick=${() => setIsCreating(true)}>Create it</button> <a href=${others}>Look for others</a></p>`}
    ${isCreating && html`<${CreateDialog} bucket=${place.bucket} name=${place.streamId} onDone=${onCreated} onClose=${() => setIsCreating(false)} />`}</main>`
}

function Views({ kind, view, onShow }) {
  const views = VIEWS[kind]
  if (!views) return null
  const shown = view ?? views[0][0]
  const button = ([name, title]) => html`<button key=${name} aria-pressed=${name === shown ? "true" : "false"} onClick=${() => onShow(name)}>${title}</button>`
  return html`<span class="views" role="group" aria-label="View">${views.map(button)}</span>`
}

// How much is shown, and what can be done where that is nothing. `onSearch` is there where the page does not hold all.
function Count({ kind, filter, count, first, end, state, isEmpty, onOlder, onSearch, onClear, onAppend }) {
  const noun = { json: "message", text: "line", binary: "row" }[kind] ?? "message"
  return html`<div class="counted"><p class="hint" id="counted">${filter ? `${number(count)} of ` : ""}${counted(end - first, noun)} shown${state.name === "live" && !end ? "; new ones appear here" : ""}${first > 0 ? `; the oldest ${number(first)} were dropped: start earlier to see them` : ""}</p>
    ${onOlder && html`<button onClick=${onOlder}>Show older</button>`}
    ${filter && onSearch && html`<button onClick=${onSearch}>Search the whole stream</button>`}
    ${filter && !count && html`<button onClick=${onClear}>Clear the filter</button>`}
    ${isEmpty && state.name === "live" && html`<button onClick=${onAppend}>Append a message</button>`}</div>`
}

// Keys may come faster than the page is drawn, so each step goes on from what the one before has selected.
function useKeys({ first, count, select, togglePause, goToEnd }) {
  useLayoutEffect(() => {
    function onKey({ detail: key }) {
      const step = { j: 1, k: -1 }[key]
      const last = first + count - 1
      if (step && count) select((old) => (old === null ? (step > 0 ? first : last) : Math.max(first, Math.min(last, old + step))))
      if (key === "p") togglePause()
      if (key === "g") goToEnd()
    }
    addEventListener("console-key", onKey)
    return () => removeEventListener("console-key", onKey)
  })
}

// Calls `onStart` with the offset that the address names, or else with that of the last messages once the server tells it.
// Where the server is away it is asked again: a stream may be long, and its beginning is not asked for.
function useFirstStart(path, onStart) {
  useEffect(() => {
    const { query } = parseAddress(location.hash)
    const at = query.get("at")
    let timer = null
    let isGone = false
    const find = () =>
      resolveStart(path, "last", query.get("last") ?? DEFAULT_LAST).then(
        (found) => isGone || onStart(found, false),
        (refused) => isGone || (isFinal(refused) ? onStart(renderOffset(0), false) : (timer = setTimeout(find, STATS_EVERY_MS))),
      )
    onStart(at, Boolean(at))
    if (!at) find()
    return () => {
      isGone = true
      clearTimeout(timer)
    }
  }, [path, token.value])
}

export function StreamPage({ path }) {
  const place = placeOf(path)
  const [{ found, error }, reload] = useLoaded((signal) => getJson(`/v1/stats?${new URLSearchParams({ stream: path })}`, signal), path, { everyMs: STATS_EVERY_MS, keepsFound: true })
  const [start, setStart] = useState(null)
  const [round, setRound] = useState(0)
  const [paused, setPaused] = useState(null)
  const [follow, setFollow] = useState(true)
  const [filter, setFilter] = useState(parseAddress(location.hash).query.get("filter") ?? "")
  const [view, setView] = useState(parseAddress(location.hash).query.get("view"))
  const [selected, setSelected] = useState(null)
  const [action, setAction] = useState("")
  const [notice, setNotice] = useState("")
  const kind = found && kindOf(found.content_type)
  const { messages: held, rate, version, state, loadOlder } = useTail(path, start, kind, round)
  const stats = found && brought(found, held, rate)
  const [search, beginSearch, endSearch] = useSearch(path, kind, filter)
  const matches = useFilter(held, search ? "" : filter, version)
  const messages = search?.found ?? held
  const times = useMemo(() => messages && new Times(path, messages), [messages])
  // Chosen anew while there are few, and then only now and then.
  const columns = useMemo(() => (kind === "json" && view !== "raw" ? columnsOf(messages) : []), [messages, view, Math.floor(Math.log2((messages?.end ?? 0) + 1))])

  // An address that names a message shows it, and not the end.
  useFirstStart(path, (offset, isNamed) => {
    setStart(offset)
    setSelected(isNamed ? 0 : null)
    setFollow(!isNamed)
  })

  useEffect(() => {
    if (state.error?.status !== 410 || !stats) return
    if (isOfAnother(state.error)) {
      setNotice("The stream was created again, or put back to an older state: this is what it holds now.")
      setStart(renderOffset(0))
      return setRound((old) => old + 1)
    }
    // What lay there was folded into a snapshot: the reader goes on behind it.
    setNotice(`What was before ${stats.retained_offset} is no longer kept${stats.snapshot ? ": the snapshot holds it" : ""}.`)
    if (start !== stats.retained_offset) setStart(stats.retained_offset)
  }, [state, found])

  const end = search ? messages.end : paused ?? messages?.end ?? 0
  const first = messages?.first ?? 0
  const numbers = matches && matches.filter((each) => each < end)
  const count = numbers ? numbers.length : Math.max(0, end - first)
  const numberAt = (row) => (numbers ? numbers[row] : row)
  const listFirst = numbers ? 0 : first
  const message = selected === null || !messages ? null : times.messageAt(numberAt(selected))
  const fresh = paused === null ? 0 : held.end - paused
  const isRunning = kind === "text" && view !== "lines" && !filter && selected === null
  const begin = held?.end > held?.first ? held.begin : Number(start)
  const holdsAll = stats && begin <= Number(stats.retained_offset)
  const onOlder = stats && begin > Number(stats.retained_offset) && count && !search && !filter && !isRunning ? loadOlder : null
  const isWhole = kind === "json" && holdsAll && ["live", "closed"].includes(state.name)

  const togglePause = () => {
    held?.breakLine()
    setPaused((old) => (old === null ? (held?.end ?? 0) : null))
  }
  const searchAll = () => {
    goToEnd()
    beginSearch(stats.retained_offset, stats.tail_offset)
  }
  const startAt = (offset, kind, value) => {
    const isEnd = kind === "last" || kind === "now"
    setStart(offset)
    setRound((old) => old + 1)
    setPaused(null)
    setSelected(isEnd ? null : 0)
    setFollow(isEnd)
    setNotice("")
    replaceQuery({ at: isEnd ? null : offset, last: kind === "last" && value !== DEFAULT_LAST ? value : null })
  }
  const showOnly = (text) => {
    setFilter(text)
    setSelected(null)
    replaceQuery({ filter: text || null })
  }
  const show = (name) => {
    setView(name)
    setSelected(null)
    replaceQuery({ view: name === VIEWS[kind][0][0] ? null : name })
  }
  const download = () => {
    const { name, extension } = kind === "binary" ? guess(messages.at(first)?.bytes ?? new Uint8Array()) : { extension: { json: "ndjson", text: "txt" }[kind] }
    save(messages.all(), `${place.streamId.split("/").at(-1)}.${extension}`)
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

  useKeys({ first: listFirst, count, select, togglePause, goToEnd })

  if (error && !stats) return html`<${Unavailable} place=${place} error=${error} onCreated=${(created) => (created === path ? reload() : (location.hash = linkTo(created)))} />`
  const looksLike = kind === "binary" && messages.at(first)?.offset === 0 ? guess(messages.at(first).bytes).name : ""
  return html`<main id="main" tabindex="-1" class="stream">
    <div class="page-head">
      <h1 class="name" tabindex="0" title=${visible(place.streamId)}>${place.streamId}</h1>
      <${Actions} place=${place} stats=${stats} onAction=${setAction} onDownload=${download} />
    </div>
    <${Facts} path=${path} place=${place} stats=${stats} kind=${kind} state=${state} rate=${rate} held=${isWhole ? held.end - held.first : null} looksLike=${looksLike} />
    <${Extent} stats=${stats} messages=${held} end=${paused ?? held?.end ?? 0} />
    ${notice && html`<p class="notice" role="status">${notice}</p>`}
    ${state.name === "stopped" && state.error?.status !== 410 && html`<p role="alert" class="error">${state.error?.message}</p>`}
    <div class="toolbar">
      <${Start} path=${path} onStart=${startAt} />
      <input id="search" class="filter" type="search" aria-label="Filter" placeholder=${kind === "json" ? "Filter: a text, or $.member=value" : "Filter"} value=${filter} onInput=${(event) => showOnly(event.currentTarget.value)} autocomplete="off" spellcheck=${false} />
      <${Views} kind=${kind} view=${view} onShow=${show} />
      <button onClick=${togglePause} aria-pressed=${paused === null ? "false" : "true"}>${paused === null ? "Pause" : `Go on (${number(fresh)} new)`}</button>
      <button onClick=${goToEnd}>To the end</button>
    </div>
    <${Announcer} messages=${held} version=${version} />
    <div class=${message ? "split open" : "split"}>
      ${isRunning
        ? html`<${RunningText} text=${messages.tailText(end, RUNNING_BYTES)} />`
        : html`<div class="log-frame">
          ${kind !== "binary" && html`<${LogHead} columns=${columns} />`}
          <${VirtualList}
            label="Messages"
            first=${listFirst}
            count=${count}
            selected=${selected}
            onSelect=${select}
            follow=${follow && paused === null && !search}
            onFollow=${setFollow}
            onTop=${onOlder}
            renderRow=${(row) => html`<${Row} messages=${messages} times=${times} number=${numberAt(row)} columns=${columns} isRaw=${view === "raw"} />`}
          /></div>`}
      ${message && html`<${Detail} key=${message.number} path=${path} messages=${messages} times=${times} message=${message} kind=${kind} onStep=${(by) => dispatchEvent(new CustomEvent("console-key", { detail: by > 0 ? "j" : "k" }))} />`}
    </div>
    ${search
      ? html`<${Progress} search=${search} onEnd=${endSearch} />`
      : html`<${Count} kind=${kind} filter=${filter} count=${count} first=${first} end=${end} state=${state} isEmpty=${stats && !Number(stats.tail_offset)} onOlder=${onOlder} onSearch=${!holdsAll && stats && searchAll} onClear=${() => showOnly("")} onAppend=${() => setAction("append")} />`}
    ${action && stats && html`<${Action} name=${action} path=${path} place=${place} stats=${stats} message=${message} onDone=${reload} onClose=${() => setAction("")} />`}
  </main>`
}
