// What can be done with a stream: each action is shown as code before it is done.
import { missing, token } from "./api.js"
import { ActionDialog, Code, Copy, Dialog, Menu } from "./dialogs.js"
import { html } from "./html.js"
import { linkTo } from "./links.js"
import { kindOf, renderOffset } from "./messages.js"
import { readSnippets } from "./snippets.js"

const ACTIONS = [
  { name: "append", title: "Append", rights: ["write"] },
  { name: "close", title: "Close", rights: ["write"] },
  { name: "fork", title: "Fork", rights: ["write", "manage"] },
  { name: "snapshot", title: "Publish a snapshot", rights: ["manage"] },
  { name: "delete", title: "Delete", rights: ["manage"] },
]

// Why an action cannot be done, or "".
function hindrance({ name, rights }, place, stats) {
  const lacks = missing(rights, place.bucket, place.streamId)
  if (lacks) return `needs ${lacks}`
  if (stats?.compact && name === "snapshot") return "the stream is compacted"
  return stats?.status === "Closed" && (name === "append" || name === "close") ? "the stream is closed" : ""
}

export function Actions({ place, stats, onAction, onDownload }) {
  const button = (action) => {
    const why = hindrance(action, place, stats)
    const style = { append: "primary", delete: "danger" }[action.name] ?? ""
    return html`<button key=${action.name} class=${style} disabled=${Boolean(why)} onClick=${() => onAction(action.name)}>${action.title}${why && html` <small>(${why})</small>`}</button>`
  }
  const [append, ...others] = ACTIONS.filter(({ name }) => name !== "snapshot" || place.bucket !== "v1")
  return html`<div class="actions" role="group" aria-label="Actions">
    ${button(append)}
    <${Menu} label="More">
      <button onClick=${() => onAction("read")}>Read from code</button>
      <button onClick=${() => onAction("link")}>Link to this view</button>
      <button onClick=${onDownload}>Download what is shown</button>
      ${others.map(button)}
    <//>
  </div>`
}

export function Action({ name, path, place, stats, message, onDone, onClose }) {
  const type = stats.content_type
  const here = message ? renderOffset(message.next) : stats.tail_offset
  if (name === "read") {
    const offset = message ? renderOffset(message.offset) : "-1"
    return html`<${Dialog} title="Read from code" onClose=${onClose}><p>Reads from ${offset === "-1" ? "the beginning" : html`offset <code>${offset}</code>`} on, and waits for more.</p><${Code} versions=${readSnippets(path, offset, { hasToken: Boolean(token.value) })} /><//>`
  }
  if (name === "link") return html`<${Dialog} title="Link to this view" onClose=${onClose}><pre>${location.href}</pre><${Copy} text=${location.href} /><//>`
  const { title, rights } = ACTIONS.find((each) => each.name === name)
  const shared = { title, rights, onClose, onDone }
  if (name === "append") {
    const fields = [
      { name: "body", label: kindOf(type) === "json" ? "JSON (an array becomes one message for each element)" : "Text", kind: "text" },
      { name: "file", label: "or a file", kind: "file" },
    ]
    return html`<${ActionDialog} ...${shared} fields=${fields} build=${(values) => ({ method: "POST", path, headers: { "Content-Type": type }, body: values.body })} />`
  }
  if (name === "close") {
    return html`<${ActionDialog} ...${shared} note="Nothing can be appended afterwards, and readers are told that this is the end." build=${() => ({ method: "POST", path, headers: { "Stream-Closed": "true" } })} />`
  }
  if (name === "fork") {
    const fields = [{ name: "to", label: "Name of the fork", initial: `${place.streamId}-fork` }, { name: "offset", label: "At offset", initial: here }]
    const build = (values) => ({ method: "PUT", path: path.replace(/[^/]*$/, "") === "/v1/stream/" || place.bucket === "v1" ? `/v1/stream/${values.to.split("/").map(encodeURIComponent).join("/")}` : `/${place.bucket}/${encodeURIComponent(values.to)}`, headers: { "Stream-Forked-From": path, "Stream-Fork-Offset": values.offset } })
    return html`<${ActionDialog} ...${shared} fields=${fields} build=${build} onDone=${(_, request) => { location.hash = linkTo(request.path) }} />`
  }
  if (name === "snapshot") {
    const fields = [{ name: "offset", label: "At offset", initial: here }, { name: "type", label: "Content type", initial: "application/json" }, { name: "body", label: "What replaces the messages before that offset", kind: "text" }]
    return html`<${ActionDialog} ...${shared} fields=${fields} note="Messages before that offset can then no longer be read: readers begin with the snapshot." build=${(values) => ({ method: "PUT", path: `${path}/snapshot/${values.offset}`, headers: { "Content-Type": values.type }, body: values.body })} />`
  }
  return html`<${ActionDialog} ...${shared} confirm=${place.streamId} note="The stream and its messages are gone for good." build=${() => ({ method: "DELETE", path })} onDone=${() => { location.hash = "#/streams" }} />`
}
