// Where reading begins: the form, and the offset that is meant.
import { useState } from "./preact-hooks.js"
import { getJson } from "./api.js"
import { html } from "./html.js"

export const DEFAULT_LAST = "1000"

export function Start({ path, onStart }) {
  const [kind, setKind] = useState("last")
  const [value, setValue] = useState(DEFAULT_LAST)
  const [error, setError] = useState("")
  const needs = { last: "messages", offset: "offset", from: "local time" }[kind]

  async function start(event) {
    event.preventDefault()
    try {
      onStart(await resolveStart(path, kind, value), kind, value)
      setError("")
    } catch (refused) {
      setError(refused.message)
    }
  }

  return html`<form class="start" onSubmit=${start}>
    <label><span aria-hidden="true">Start at</span>
      <select name="start" aria-label="Start at" value=${kind} onChange=${(event) => { setKind(event.currentTarget.value); setValue({ last: DEFAULT_LAST }[event.currentTarget.value] ?? "") }}>
        <option value="beginning">the beginning</option><option value="last">the last …</option>
        <option value="from">a time …</option><option value="offset">an offset …</option><option value="now">now</option>
      </select>
    </label>
    ${needs && html`<input name="start-value" aria-label=${needs} placeholder=${needs} type=${kind === "from" ? "datetime-local" : "text"} value=${value} onInput=${(event) => setValue(event.currentTarget.value)} />`}
    <button type="submit">Read</button>
    <span role="alert" class="error">${error}</span>
  </form>`
}

// An offset to read from.
export async function resolveStart(path, kind, value) {
  if (kind === "now") return "now"
  if (kind === "offset") return value.trim()
  if (kind === "beginning") return (await getJson(`/v1/stats?${new URLSearchParams({ stream: path })}`)).retained_offset
  const asked = kind === "last" ? { last: value } : { from: new Date(value).toISOString() }
  return (await getJson(`/v1/start?${new URLSearchParams({ stream: path, ...asked })}`)).offset
}
