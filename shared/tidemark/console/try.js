// A request of the API page, as the reader has filled it in, and what the server answers.
import { useState } from "./preact-hooks.js"
import { recorded } from "./api.js"
import { html } from "./html.js"
import { addressOf } from "./links.js"

const SECONDS = 10
const SHOWN_BYTES = 64 * 1024

// As much of the body as comes in time: an event stream does not end by itself.
async function bodyOf(response) {
  const chunks = []
  const reader = response.body?.getReader()
  let size = 0
  try {
    for (let part = await reader?.read(); part && !part.done && size < SHOWN_BYTES; part = await reader.read()) {
      chunks.push(part.value)
      size += part.value.length
    }
  } catch (error) {
    if (error.name !== "TimeoutError") throw error
  }
  return new Blob(chunks).text()
}

export function Try({ request }) {
  const [answer, setAnswer] = useState(null)
  async function run() {
    setAnswer({ status: "…" })
    try {
      const { method, path, headers, body } = request
      const response = await recorded(addressOf(path), { method, headers, body: body || undefined, signal: AbortSignal.timeout(SECONDS * 1000) })
      setAnswer({ status: `${response.status} ${response.statusText}`, headers: [...response.headers], body: await bodyOf(response) })
    } catch (error) {
      setAnswer({ status: error.name === "TimeoutError" ? `No answer within ${SECONDS} s` : String(error.message ?? error) })
    }
  }
  return html`<p><button class="primary" onClick=${run}>Send it to this server</button> <span role="status">${answer?.status}</span></p>
    ${answer?.headers && html`<pre class="answer" tabindex="0" aria-label="The answer">${answer.headers.map(([name, value]) => `${name}: ${value}\n`).join("")}${answer.body && `\n${answer.body}`}</pre>`}`
}
