// A JSON value as a tree that opens. Large objects show their first members, and more when asked.
import { useState } from "./preact-hooks.js"
import { html } from "./html.js"

const SHOWN = 100

export function JsonTree({ value, name, open = true, depth = 0 }) {
  const [limit, setLimit] = useState(SHOWN)
  const label = name === undefined ? null : html`<span class="json-name">${name}</span>: `
  if (value === null || typeof value !== "object") {
    return html`<div class="json-leaf">${label}<span class=${`json-${value === null ? "null" : typeof value}`}>${JSON.stringify(value)}</span></div>`
  }
  const members = Array.isArray(value) ? value.map((each, index) => [index, each]) : Object.entries(value)
  const summary = Array.isArray(value) ? `array of ${members.length}` : `object of ${members.length}`
  return html`<details open=${open && depth < 3} class="json">
    <summary>${label}<span class="json-summary">${summary}</span></summary>
    <div class="json-members">
      ${members.slice(0, limit).map(([key, each]) => html`<${JsonTree} key=${key} name=${key} value=${each} depth=${depth + 1} />`)}
      ${members.length > limit && html`<button onClick=${() => setLimit(limit + SHOWN)}>${members.length - limit} more</button>`}
    </div>
  </details>`
}
