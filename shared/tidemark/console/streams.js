// The streams of the plain surface or of a bucket, by prefix, a page at a time.
import { useEffect, useLayoutEffect, useRef, useState } from "./preact-hooks.js"
import { getJson, missing, needsToken, pathOf } from "./api.js"
import { CreateDialog } from "./create.js"
import { FirstStream } from "./dialogs.js"
import { bytes, counted, number } from "./format.js"
import { html } from "./html.js"
import { linkTo, parseAddress, replaceQuery } from "./links.js"
import { useLoaded } from "./loading.js"
import { Ago, Left, showsNumbers } from "./server.js"

const PAGE = 50
const PAUSE_MS = 250
const EVERY_MS = 5000

// Of names that contain a text the server knows nothing: its pages are read on until there are enough.
const [LOOKED_AT, MOST_LOOKED_AT] = [1000, 20_000]

async function listed(bucket, prefix, after, part, signal) {
  const found = { streams: [], next_cursor: after, has_more: true }
  for (let looked = 0; found.has_more && found.streams.length < PAGE && looked < MOST_LOOKED_AT; looked += LOOKED_AT) {
    const page = await getJson(listPath(bucket, new URLSearchParams({ limit: part ? LOOKED_AT : PAGE, prefix, after: found.next_cursor })), signal)
    const streams = page.streams.filter(({ stream_id: name }) => name.toLowerCase().includes(part.toLowerCase()))
    Object.assign(found, page, { streams: [...found.streams, ...streams] })
  }
  const { streams, ...rest } = found
  if (streams.length <= PAGE) return found
  return { ...rest, streams: streams.slice(0, PAGE), has_more: true, next_cursor: streams[PAGE - 1].stream_id }
}

const listPath = (bucket, query) => (bucket === "v1" ? `/v1/streams?${query}` : `/${bucket}/streams?${query}`)

function Status({ stream }) {
  return html`${stream.status === "Closed" ? "■ closed" : html`<span class="well">●</span> open`}${stream.expires_at_ms && html`<span class="expiring">, expires in <${Left} until=${stream.expires_at_ms} /></span>`}`
}

export function Streams() {
  const asked = parseAddress(location.hash).query
  const [bucket, setBucket] = useState(asked.get("bucket") ?? "v1")
  const [typedBucket, setTypedBucket] = useState(bucket)
  const [prefix, setPrefix] = useState(asked.get("prefix") ?? "")
  const [part, setPart] = useState(asked.get("contains") ?? "")
  // The names that the pages so far begin behind. In an address that somebody sent there is only the last of them.
  const [cursors, setCursors] = useState(history.state?.cursors ?? [asked.get("after") ?? ""])
  const [selected, setSelected] = useState(-1)
  const [isCreating, setIsCreating] = useState(false)
  const table = useRef(null)
  // Keys may come faster than the page is drawn, so each goes on from what the one before has selected.
  const latest = useRef(-1)
  const select = (index) => {
    latest.current = index
    setSelected(index)
  }
  const [buckets] = useLoaded((signal) => getJson("/v1/buckets?limit=1000", signal), "buckets")
  const path = JSON.stringify([bucket, prefix, cursors.at(-1), part])
  const [{ found, error, key }, reload] = useLoaded(async (signal) => {
    replaceQuery({ bucket: bucket === "v1" ? null : bucket, prefix: prefix || null, contains: part || null, after: cursors.at(-1) || null }, { cursors })
    return listed(bucket, prefix, cursors.at(-1), part, signal)
  }, path, { pauseMs: PAUSE_MS, everyMs: showsNumbers.value && !part ? EVERY_MS : 0 })
  const streams = found?.streams ?? []
  useEffect(() => select(-1), [key])

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

  const search = (set) => (event) => {
    set(event.currentTarget.value)
    setCursors([""])
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
      <button type="button" onClick=${reload}>Refresh</button>
    </form>
    ${buckets.error && !needsToken.value && html`<p class="hint">Buckets cannot be listed: ${buckets.error.message}.</p>`}
    ${error && html`<p role="alert" class="error">${error.message}${lacks && !needsToken.value && html` – the token lacks <code>${lacks}</code>`}</p>`}
    <div class="wide" hidden=${!streams.length}>
    <table class="streams" ref=${table}>
      <thead><tr><th scope="col">stream</th><th scope="col">state</th><th scope="col" class="of-type">type</th><th scope="col" class="of-number">size</th><th scope="col" class="of-number">last write</th></tr></thead>
      <tbody>
        ${streams.map((each, index) => html`<tr key=${each.stream_id} class=${index === selected ? "selected" : ""}>
          <td><a href=${linkTo(pathOf(bucket, each.stream_id))}>${each.stream_id}</a></td>
          <td><${Status} stream=${each} /></td><td class="of-type">${each.content_type}</td><td class="of-number">${bytes(each.tail_offset)}</td><td class="of-number"><${Ago} at=${each.last_write_at_ms} /></td>
        </tr>`)}
      </tbody>
    </table>
    </div>
    <p role="status" class="hint">${error ? "" : !found || key !== path ? "Loading…" : streams.length ? `${counted(streams.length, "stream")} ${cursors[0] ? `after ${cursors.at(-1)}` : `on page ${number(cursors.length)}`}` : found.has_more ? `None of the ${number(MOST_LOOKED_AT)} names that were looked at contains this.` : prefix || part ? `No stream has a name that ${part ? "contains this" : "begins like this"}.` : "There are no streams yet."}</p>
    ${found && key === path && !streams.length && !prefix && !part && !cursors.at(-1) && html`<${FirstStream} bucket=${bucket} />`}
    ${(cursors.at(-1) || found?.has_more) && html`<nav class="paging" aria-label="Pages of the list">
      <button disabled=${!cursors.at(-1)} onClick=${() => setCursors([""])}>First page</button>
      <button disabled=${cursors.length < 2} onClick=${() => setCursors(cursors.slice(0, -1))}>Previous page</button>
      <button disabled=${key !== path || !found?.has_more} onClick=${() => setCursors([...cursors, found.next_cursor])}>Next page</button>
    </nav>`}
    ${isCreating && html`<${CreateDialog} bucket=${bucket} name=${prefix} onDone=${(path) => { location.hash = linkTo(path) }} onClose=${() => setIsCreating(false)} />`}
  </main>`
}
