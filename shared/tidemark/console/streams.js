// The streams of the plain surface or of a bucket, by prefix, a page at a time.
import { useEffect, useLayoutEffect, useRef, useState } from "./preact-hooks.js"
import { getJson, me, missing, needsToken, pathOf } from "./api.js"
import { CreateDialog } from "./create.js"
import { DeleteDialog } from "./delete.js"
import { FirstStream } from "./dialogs.js"
import { bytes, counted, number } from "./format.js"
import { NameLink, html, visible } from "./html.js"
import { linkTo, parseAddress, replaceQuery } from "./links.js"
import { useLoaded } from "./loading.js"
import { Ago, Left, showsNumbers } from "./server.js"

const PAGE = 50
const PAUSE_MS = 250
const EVERY_MS = 5000

// The server lists by name alone. To filter, more of its pages are read until there are enough; to sort or to count, all of them, or twenty (on AWS a page has 100).
const [LOOKED_AT, MOST_LOOKED_AT] = [1000, 20_000]

// "" is the order of the server, a page at a time; "name" is the same with all of them looked at.
const BY_NAME = (one, other) => (one.stream_id < other.stream_id ? -1 : 1)
const BY_WRITE = (one, other) => one.last_write_at_ms - other.last_write_at_ms
const ORDERS = { name: BY_NAME, "-name": (one, other) => BY_NAME(other, one), written: BY_WRITE, "-written": (one, other) => BY_WRITE(other, one) }

async function listed({ bucket, prefix, part, state, order }, after, signal) {
  const [limit, enough] = [order || part || state ? LOOKED_AT : PAGE, order ? Infinity : PAGE]
  const found = { streams: [], next_cursor: after, has_more: true, looked: 0 }
  for (let asked = 0; found.has_more && found.streams.length < enough && asked < MOST_LOOKED_AT; asked += LOOKED_AT) {
    const page = await getJson(listPath(bucket, new URLSearchParams({ limit, prefix, after: found.next_cursor })), signal)
    const streams = page.streams.filter((each) => each.stream_id.toLowerCase().includes(part.toLowerCase()) && (!state || each.status.toLowerCase() === state))
    Object.assign(found, page, { streams: found.streams.concat(streams), looked: found.looked + page.streams.length })
  }
  const { streams, ...rest } = found
  if (order) return { ...rest, streams: streams.sort(ORDERS[order]) }
  if (streams.length <= PAGE) return found
  return { ...rest, streams: streams.slice(0, PAGE), has_more: true, next_cursor: streams[PAGE - 1].stream_id }
}

// A page of what was found. Of what is sorted or counted all is here, and a cursor is how many rows come before the page.
function pageOf(found, order, after) {
  if (!found || !order) return { streams: found?.streams ?? [], hasMore: found?.has_more, next: found?.next_cursor }
  const end = Number(after) + PAGE
  return { streams: found.streams.slice(end - PAGE, end), hasMore: end < found.streams.length, next: String(end) }
}

const listPath = (bucket, query) => (bucket === "v1" ? `/v1/streams?${query}` : `/${bucket}/streams?${query}`)

function Status({ stream }) {
  return html`${stream.status === "Closed" ? "■ closed" : html`<span class="well">●</span> open`}${stream.expires_at_ms && html`<span class="expiring">, expires in <${Left} until=${stream.expires_at_ms} /></span>`}`
}

// How many there are, as far as that is known, and which of them are shown.
function summary({ found, shown, order, cursors, prefix, part, state }) {
  const all = found.streams.length
  if (!all) {
    if (found.has_more) return `None of the ${number(found.looked)} streams that were looked at ${part ? "has a name that contains this" : `is ${state}`}.`
    return part || prefix ? `No stream has a name that ${part ? "contains" : "begins like"} this.` : state ? `No stream is ${state}.` : "There are no streams yet."
  }
  if (!order) {
    if (cursors[0]) return `${counted(shown, "stream")} after ${cursors.at(-1)}`
    if (found.has_more) return `${counted(shown, "stream")} on page ${number(cursors.length)}`
    return cursors.length === 1 ? counted(shown, "stream") : `${counted(shown, "stream")} on page ${number(cursors.length)}, ${number(PAGE * (cursors.length - 1) + shown)} in all`
  }
  const of = found.has_more ? ` of the first ${number(found.looked)} by name, and no more were looked at` : found.looked > all ? ` of ${number(found.looked)}` : ""
  return `${counted(all, "stream")}${of}${all > PAGE ? `, page ${number(Number(cursors.at(-1)) / PAGE + 1)}` : ""}`
}

// A header that sorts: by `orders[0]` first, then the other way round.
function Sorted({ label, orders, order, onOrder, ...rest }) {
  const index = orders.indexOf(order)
  const [said, mark] = [["ascending", " ▲"], ["descending", " ▼"]][orders[index] ? Number(orders[index].startsWith("-")) : 0]
  return html`<th scope="col" aria-sort=${index < 0 ? null : said} ...${rest}><button class="sort" onClick=${() => onOrder(orders[index === 0 ? 1 : 0])}>${label}<span aria-hidden="true">${index < 0 ? "" : mark}</span></button></th>`
}

export function Streams() {
  const asked = parseAddress(location.hash).query
  const [bucket, setBucket] = useState(asked.get("bucket") ?? "v1")
  const [typedBucket, setTypedBucket] = useState(bucket)
  const [prefix, setPrefix] = useState(asked.get("prefix") ?? "")
  const [part, setPart] = useState(asked.get("contains") ?? "")
  const [state, setState] = useState(asked.get("state") ?? "")
  const [order, setOrder] = useState(asked.get("order") in ORDERS ? asked.get("order") : "")
  // Where the pages so far begin. In an address that somebody sent there is only the last of them.
  const [cursors, setCursors] = useState(history.state?.cursors ?? [asked.get("after") ?? ""])
  const [selected, setSelected] = useState(-1)
  const [isCreating, setIsCreating] = useState(false)
  // The paths that are ticked, and the names that the dialog is about. What is not in sight is not deleted.
  const [ticked, setTicked] = useState(new Set())
  const [deleting, setDeleting] = useState(null)
  const table = useRef(null)
  // Keys may come faster than the page is drawn, so each goes on from what the one before has selected.
  const latest = useRef(-1)
  const select = (index) => {
    latest.current = index
    setSelected(index)
  }
  const [buckets] = useLoaded((signal) => getJson("/v1/buckets?limit=1000", signal), "buckets")
  const after = cursors.at(-1)
  const path = JSON.stringify([bucket, prefix, part, state, order, order ? "" : after])
  const [{ found, error, key }, reload] = useLoaded((signal) => listed({ bucket, prefix, part, state, order }, order ? "" : after, signal), path, { pauseMs: PAUSE_MS, everyMs: showsNumbers.value && !part && !state && !order ? EVERY_MS : 0 })
  const isShown = found && key === path
  const { streams, hasMore, next } = pageOf(found, order, after)
  useEffect(() => {
    const values = { bucket: bucket === "v1" ? "" : bucket, prefix, contains: part, state, order, after }
    const timer = setTimeout(() => replaceQuery(Object.fromEntries(Object.entries(values).map(([name, value]) => [name, value || null])), { cursors }), PAUSE_MS)
    return () => clearTimeout(timer)
  }, [path, after])
  useEffect(() => select(-1), [key, after])

  useLayoutEffect(() => {
    function onKey(event) {
      const step = { j: 1, k: -1 }[event.detail]
      if (step) select(Math.max(0, Math.min(streams.length - 1, latest.current + step)))
      const chosen = streams[latest.current]
      if (event.detail === "Enter" && chosen) location.hash = linkTo(pathOf(bucket, chosen.stream_id))
    }
    addEventListener("console-key", onKey)
    return () => removeEventListener("console-key", onKey)
  }, [found, bucket])

  useEffect(() => table.current?.querySelector(".selected")?.scrollIntoView({ block: "nearest" }), [selected])

  const begin = (set) => (value) => {
    set(value)
    setCursors([""])
  }
  const search = (set) => (event) => begin(set)(event.currentTarget.value)
  const mayDelete = ({ stream_id: name }) => me.value && !missing(["manage"], bucket, name)
  const chosen = streams.filter((each) => ticked.has(pathOf(bucket, each.stream_id))).map((each) => each.stream_id)
  const tick = (name) => (event) => {
    const next = new Set(ticked)
    next[event.currentTarget.checked ? "add" : "delete"](pathOf(bucket, name))
    setTicked(next)
  }
  const lacks = missing(["read"], bucket, prefix || undefined)
  return html`<main id="main" tabindex="-1">
    <div class="page-head"><h1>Streams</h1><button class="primary" onClick=${() => setIsCreating(true)}>Create a stream</button></div>
    <form class="toolbar" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label>Bucket
        <input name="bucket" list="buckets" value=${typedBucket} onInput=${(event) => setTypedBucket(event.currentTarget.value)} onChange=${(event) => { setBucket(event.currentTarget.value || "v1"); setCursors([""]) }} autocomplete="off" />
        <datalist id="buckets"><option value="v1"></option>${(buckets.found?.buckets ?? []).map(({ bucket_id: id }) => html`<option key=${id} value=${id}></option>`)}</datalist>
      </label>
      <label>Name begins with
        <input id="search" name="prefix" type="search" value=${prefix} onInput=${search(setPrefix)} autocomplete="off" spellcheck=${false} />
      </label>
      <label>and contains
        <input name="part" type="search" value=${part} onInput=${search(setPart)} autocomplete="off" spellcheck=${false} />
      </label>
      <label>State
        <select name="state" value=${state} onChange=${search(setState)}><option value="">any</option><option value="open">open</option><option value="closed">closed</option></select>
      </label>
      <button type="button" onClick=${reload}>Refresh</button>
      ${chosen.length > 0 && html`<button type="button" class="danger" onClick=${() => setDeleting(chosen)}>Delete ${counted(chosen.length, "stream")}…</button>`}
    </form>
    ${buckets.error && !needsToken.value && html`<p class="hint">Buckets cannot be listed: ${buckets.error.message}.</p>`}
    ${error && html`<p role="alert" class="error">${error.message}${lacks && !needsToken.value && html` – the token lacks <code>${lacks}</code>`}</p>`}
    <div class="wide" hidden=${!streams.length}>
    <table class="streams" ref=${table}>
      <thead><tr><${Sorted} label="stream" orders=${[order === "name" ? "name" : "", "-name"]} order=${order} onOrder=${begin(setOrder)} /><th scope="col">state</th><th scope="col" class="of-type">type</th><th scope="col" class="of-number">size</th><${Sorted} label="last write" class="of-number" orders=${["-written", "written"]} order=${order} onOrder=${begin(setOrder)} /></tr></thead>
      <tbody>
        ${streams.map((each, index) => html`<tr key=${each.stream_id} class=${index === selected ? "selected" : ""}>
          <td><span class="choice">${mayDelete(each) && html`<input type="checkbox" aria-label=${`Choose ${visible(each.stream_id)}`} checked=${ticked.has(pathOf(bucket, each.stream_id))} onChange=${tick(each.stream_id)} />`}<${NameLink} href=${linkTo(pathOf(bucket, each.stream_id))} name=${each.stream_id} /></span></td>
          <td><${Status} stream=${each} /></td><td class="of-type">${each.content_type}</td><td class="of-number">${bytes(each.tail_offset)}</td><td class="of-number"><${Ago} at=${each.last_write_at_ms} /></td>
        </tr>`)}
      </tbody>
    </table>
    </div>
    <p class="hint"><span role="status">${error ? "" : !isShown ? "Loading…" : summary({ found, shown: streams.length, order, cursors, prefix, part, state })}</span>
      ${isShown && !order && found.has_more && html` <button type="button" class="link" onClick=${() => begin(setOrder)("name")}>Count all</button>`}</p>
    ${isShown && !streams.length && !prefix && !part && !state && !after && html`<${FirstStream} bucket=${bucket} />`}
    ${(after || hasMore) && html`<nav class="paging" aria-label="Pages of the list">
      <button disabled=${!after} onClick=${() => setCursors([""])}>First page</button>
      <button disabled=${cursors.length < 2} onClick=${() => setCursors(cursors.slice(0, -1))}>Previous page</button>
      <button disabled=${!isShown || !hasMore} onClick=${() => setCursors([...cursors, next])}>Next page</button>
    </nav>`}
    ${deleting && html`<${DeleteDialog} bucket=${bucket} names=${deleting} onDone=${reload} onClose=${() => setDeleting(null)} />`}
    ${isCreating && html`<${CreateDialog} bucket=${bucket} name=${prefix} onDone=${(path) => { location.hash = linkTo(path) }} onClose=${() => setIsCreating(false)} />`}
  </main>`
}
