// Every request of this page, with its headers: what the protocol looks like on the wire.
import { useEffect, useRef, useState } from "./preact-hooks.js"
import { calls, decode } from "./api.js"
import { html } from "./html.js"
import { time } from "./format.js"

function Headers({ title, rows, none }) {
  return html`<h3>${title}</h3>
    <table class="headers"><tbody>
      ${!rows.length && html`<tr><td>${none}</td></tr>`}
      ${rows.map(([name, value]) => html`<tr key=${name}><th scope="row">${name}</th><td>${value}</td></tr>`)}
    </tbody></table>`
}

export function Inspector({ onClose }) {
  const [open, setOpen] = useState(null)
  const box = useRef(null)
  // On a small screen it stands below the page, out of sight.
  useEffect(() => box.current.scrollIntoView({ block: "nearest" }), [])
  return html`<aside class="inspector" aria-label="Request inspector" ref=${box}>
    <div class="dialog-head"><h2>Requests</h2><button onClick=${onClose} aria-label="Close the request inspector">✕</button></div>
    <p class="hint">${calls.value.length} requests of this page, the latest first. <button onClick=${() => (calls.value = [])}>Clear</button></p>
    <ol>
      ${calls.value.map((call) => {
        const timing = call.responseHeaders.find(([name]) => name === "server-timing")?.[1] ?? ""
        const outcome = call.failure || call.status || "waiting"
        return html`<li key=${call.number}>
          <button class="call" aria-expanded=${open === call.number ? "true" : "false"} onClick=${() => setOpen(open === call.number ? null : call.number)}>
            <b>${call.method}</b> <span class="call-path" title=${call.path}>${decode(call.path)}</span>
            <span class=${call.failure || call.status >= 400 ? "error" : ""}>${outcome}</span>
            <span class="call-time">${call.ms === null ? "" : `${Math.round(call.ms)} ms`}</span>
          </button>
          ${open === call.number &&
          html`<div class="call-detail">
            <p>${time(call.at)}${timing && html`; Server-Timing: <code>${timing}</code>`}</p>
            <${Headers} title="Request" rows=${call.requestHeaders} none="None but the browser's own." />
            ${call.body && html`<pre tabindex="0" aria-label="Request body">${call.body}</pre>`}
            <${Headers} title="Response" rows=${call.responseHeaders} none=${call.ms === null ? "No answer yet." : "No answer."} />
          </div>`}
        </li>`
      })}
    </ol>
  </aside>`
}
