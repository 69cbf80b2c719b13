// The dialog that deletes several streams: it names them, asks, and says what became of each.
import { useEffect, useRef, useState } from "./preact-hooks.js"
import { pathOf, send } from "./api.js"
import { Dialog } from "./dialogs.js"
import { counted } from "./format.js"
import { html } from "./html.js"

// `onDone()` is called once all were tried. One that the server refuses does not keep the others. Closed meanwhile, it stops.
export function DeleteDialog({ bucket, names, onDone, onClose }) {
  const [typed, setTyped] = useState("")
  const [outcomes, setOutcomes] = useState(null)
  const isShut = useRef(false)
  useEffect(() => () => void (isShut.current = true), [])
  const isBlocked = typed !== String(names.length) || outcomes !== null

  async function run(event) {
    event.preventDefault()
    if (isBlocked) return
    setOutcomes({})
    for (const name of names) {
      if (isShut.current) break
      const failure = await send({ method: "DELETE", path: pathOf(bucket, name) }).then(() => "", (error) => error.message)
      setOutcomes((old) => ({ ...old, [name]: failure }))
    }
    onDone()
  }

  const failures = Object.values(outcomes ?? {})
  const failed = failures.filter(Boolean).length
  return html`<${Dialog} title=${`Delete ${counted(names.length, "stream")}`} onClose=${onClose}>
    <form onSubmit=${run}>
      <p>These streams and their messages are gone for good:</p>
      <ul class="chosen" tabindex="0" aria-label="What is deleted">${names.map((name) => html`<li key=${name}><code>${name}</code>${outcomes?.[name] === "" && " – deleted"}${outcomes?.[name] && html` <span class="error">– ${outcomes[name]}</span>`}</li>`)}</ul>
      <label><span>Type <b>${names.length}</b> to confirm</span><input name="confirm" value=${typed} onInput=${(event) => setTyped(event.currentTarget.value)} autocomplete="off" inputmode="numeric" /></label>
      <div class="dialog-foot"><button class="primary" type="submit" disabled=${isBlocked}>Delete</button>
        <span role="status">${outcomes && `${failures.length - failed} of ${names.length} deleted${failed ? `, ${failed} not` : ""}`}</span></div>
    </form>
  <//>`
}
