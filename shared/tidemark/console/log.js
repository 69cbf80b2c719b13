// JSON as a log: which members of the messages are columns, and a row of them.
import { bytes, unescaped } from "./format.js"
import { html } from "./html.js"

const LOOKED_AT = 100
const MAX_COLUMNS = 6
const SHARE = 0.6
const [MIN_WIDTH, MAX_WIDTH] = [5, 32]

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value))
const isPlain = (value) => value !== null && typeof value === "object" && !Array.isArray(value)

function parsed(messages, number) {
  try {
    const value = JSON.parse(messages.text(number))
    return isPlain(value) ? value : null
  } catch {
    return null
  }
}

// The members that most of the latest messages have and that are no lists or objects, with how wide they are; none where
// there is but one of them: then the message itself is as short.
export function columnsOf(messages) {
  const from = Math.max(messages.first, messages.end - LOOKED_AT)
  const found = new Map()
  for (let number = from; number < messages.end; number++) {
    for (const [name, value] of Object.entries(parsed(messages, number) ?? {})) if (value === null || typeof value !== "object") found.set(name, [...(found.get(name) ?? []), shown(value).length])
  }
  const often = [...found].filter(([, sizes]) => sizes.length >= SHARE * (messages.end - from))
  const columns = often.map(([name, sizes]) => ({ name, width: Math.min(MAX_WIDTH, Math.max(name.length, MIN_WIDTH, ...sizes)) }))
  return columns.length > 1 ? columns.slice(0, MAX_COLUMNS) : []
}

export function LogHead({ columns }) {
  return html`<div class="log-head" aria-hidden="true"><span class="offset">offset</span><span class="time">appended</span><span class="size">size</span>
    ${columns.map(({ name, width }) => html`<span key=${name} class="cell" style=${{ flexGrow: width }}>${name}</span>`)}<span class="cell rest">${columns.length ? "more" : "message"}</span></div>`
}

// What is in no column stands behind them as JSON.
export function Cells({ messages, number, columns }) {
  const value = parsed(messages, number)
  if (!value) return html`<span class="cell rest">${unescaped(messages.text(number))}</span>`
  const rest = Object.fromEntries(Object.entries(value).filter(([name]) => !columns.some((column) => column.name === name)))
  return html`${columns.map(({ name, width }) => html`<span key=${name} class=${`cell of-${typeof value[name]}`} style=${{ flexGrow: width }}>${shown(value[name])}</span>`)}
    <span class="cell rest">${Object.keys(rest).length > 0 && JSON.stringify(rest)}</span>`
}

export const Size = ({ count }) => html`<span class="size">${bytes(count)}</span>`
