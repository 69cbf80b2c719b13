// One message: as a tree, as text, or as bytes.
import { useState } from "./preact-hooks.js"
import { Copy } from "./dialogs.js"
import { bytes } from "./format.js"
import { Difference } from "./difference.js"
import { guess, save } from "./file-types.js"
import { html } from "./html.js"
import { JsonTree } from "./json-tree.js"
import { linkTo } from "./links.js"
import { dump, renderOffset } from "./messages.js"
import { Appended } from "./times.js"

const SHOWN_BYTES = 256 * 1024

// `onStep(by)` goes to another message.
export function Detail({ path, messages, times, message, kind, onStep }) {
  const [view, setView] = useState(kind)
  const offset = renderOffset(message.offset)
  const shown = message.bytes.subarray(0, SHOWN_BYTES)
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
      <h2>${message.gapped ? "At or behind offset" : "Offset"} <code>${offset}</code></h2>
      <span><button onClick=${() => onStep(-1)}>Previous</button> <button onClick=${() => onStep(1)}>Next</button></span>
      <span><${Copy} text=${offset} label="Copy the offset" /> <${Copy} text=${link} label="Copy a link" />${kind !== "binary" && html` <${Copy} text=${new TextDecoder().decode(message.bytes)} label="Copy the message" />`}</span>
    </div>
    <div class="tabs" role="group" aria-label="View">
      ${["json", "text", "binary"].map((name) => html`<button key=${name} aria-pressed=${name === view ? "true" : "false"} onClick=${() => setView(name)}>${name === "binary" ? "hex" : name}</button>`)}
      <span class="hint">${bytes(message.bytes.length)}, appended <${Appended} times=${times} number=${message.number} /></span> <button onClick=${() => save(message.bytes, `${offset}.${view === "json" ? "json" : guess(message.bytes).extension}`)}>Download</button>
    </div>
    <div class="message" tabindex="0" aria-label="The message">
      ${view === "json" && !fault ? html`<${JsonTree} value=${value} />` : html`<pre>${fault || (view === "binary" ? dump(shown) : text)}</pre>`}
    </div>
    <${Difference} messages=${messages} number=${message.number} />
    ${shown.length < message.bytes.length && html`<p class="hint">The first ${bytes(SHOWN_BYTES)} of it.</p>`}
  </section>`
}
