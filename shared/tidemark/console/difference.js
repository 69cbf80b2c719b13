// What a message changes: beside the one before it of the same `type` and `key`, which say what it is about (State Protocol).
import { useMemo } from "./preact-hooks.js"
import { html } from "./html.js"

const LOOKED_AT = 20_000
const SHOWN = 50

const isObject = (value) => value !== null && typeof value === "object"

function parsed(messages, number) {
  try {
    return JSON.parse(messages.text(number))
  } catch {
    return null
  }
}

function* changes(before, after, path = "") {
  if (!isObject(before) || !isObject(after)) {
    if (before !== after) yield [path, before, after]
    return
  }
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) yield* changes(before[name], after[name], path ? `${path}.${name}` : name)
}

function before(messages, number) {
  const { type, key } = parsed(messages, number) ?? {}
  if (key === undefined) return null
  const wanted = JSON.stringify(key)
  for (let each = number - 1; each >= Math.max(messages.first, number - LOOKED_AT); each--) {
    if (!messages.text(each).includes(wanted)) continue
    const value = parsed(messages, each)
    if (value?.type === type && JSON.stringify(value?.key) === wanted) return value
  }
  return null
}

export function Difference({ messages, number }) {
  const changed = useMemo(() => {
    const old = messages.kind === "json" && before(messages, number)
    return old ? [...changes(old, parsed(messages, number))] : []
  }, [messages, number])
  const shown = (value) => (value === undefined ? "–" : JSON.stringify(value))
  if (!changed.length) return null
  return html`<table class="changes"><caption>Changed since the message before of this key</caption>
    <thead><tr><th scope="col">member</th><th scope="col">before</th><th scope="col">here</th></tr></thead>
    <tbody>${changed.slice(0, SHOWN).map(([path, old, value]) => html`<tr key=${path}><th scope="row">${path}</th><td><code>${shown(old)}</code></td><td><code>${shown(value)}</code></td></tr>`)}</tbody></table>
    ${changed.length > SHOWN && html`<p class="hint">and ${changed.length - SHOWN} more</p>`}`
}
