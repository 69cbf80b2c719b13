// Dialogs: an action is shown as code before it is done.
import { useEffect, useRef, useState } from "./preact-hooks.js"
import { missing, send, setToken, token, me, meError, pathOf, placeOf } from "./api.js"
import { html } from "./html.js"
import { snippets } from "./snippets.js"

export function Dialog({ title, onClose, children }) {
  const box = useRef(null)
  useEffect(() => box.current.showModal(), [])
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onClose=${onClose}>
    <div class="dialog-head">
      <h2 id="dialog-title">${title}</h2>
      <button type="button" onClick=${() => box.current.close()} aria-label="Close the dialog">✕</button>
    </div>
    ${children}
  </dialog>`
}

// A button that opens what is in it. It closes with Escape, a click elsewhere, and a choice.
export function Menu({ label, class: style = "", children }) {
  const box = useRef(null)
  useEffect(() => {
    const close = (event) => {
      if (event.key === "Escape" || (event.type === "click" && !box.current.querySelector("summary").contains(event.target))) box.current.open = false
    }
    addEventListener("click", close)
    addEventListener("keydown", close)
    return () => {
      removeEventListener("click", close)
      removeEventListener("keydown", close)
    }
  }, [])
  return html`<details class="menu" ref=${box}><summary class=${style || "button"}>${label}</summary><div>${children}</div></details>`
}

export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState("")
  async function copy() {
    try {
      await navigator.clipboard.writeText(text)
      setDone("copied")
    } catch {
      setDone("the browser did not allow it")
    }
    setTimeout(() => setDone(""), 2000)
  }
  return html`<button type="button" class="copy" onClick=${copy}>${label}</button><span class="said" role="status">${done}</span>`
}

export function Code({ versions }) {
  const [shown, setShown] = useState("curl")
  return html`<div class="code">
    <div class="tabs" role="group" aria-label="Language">
      ${Object.keys(versions).map(
        (name) => html`<button type="button" key=${name} aria-pressed=${name === shown ? "true" : "false"} onClick=${() => setShown(name)}>${name}</button>`,
      )}
      <${Copy} text=${versions[shown]} />
    </div>
    <pre tabindex="0" aria-label=${`The request as ${shown}`}><code>${versions[shown]}</code></pre>
  </div>`
}

// Where there is nothing yet: the request that makes the first.
export function First({ what, request }) {
  return html`<section class="panel"><h2>Create the first ${what}</h2><${Code} versions=${snippets(request, { hasToken: Boolean(token.value) })} /></section>`
}

export function FirstStream({ bucket }) {
  return html`<${First} what="stream" request=${{ method: "PUT", path: pathOf(bucket, "first"), headers: { "Content-Type": "text/plain" }, body: "hello\n" }} />`
}

// The first word of the title is what its button does. `build(values)` makes the request; `confirm` is a name that has to be typed first. `place(values)` says what the rights
// are needed for, where that is not the stream at the request's path.
export function ActionDialog({ title, fields = [], build, rights, place, confirm, onDone, onClose, note }) {
  const [values, setValues] = useState(Object.fromEntries(fields.map((field) => [field.name, field.initial ?? ""])))
  const [typed, setTyped] = useState("")
  const [file, setFile] = useState(null)
  const [state, setState] = useState({ running: false, error: "", done: "" })
  const request = build(values, file)
  const target = place ? place(values) : placeOf(request.path)
  const lacks = missing(rights, target.bucket, target.streamId || undefined)
  const isBlocked = Boolean(lacks) || (confirm !== undefined && typed !== confirm) || state.running

  async function run(event) {
    event.preventDefault()
    if (isBlocked) return
    setState({ running: true, error: "", done: "" })
    try {
      const response = await send({ ...request, body: file ?? request.body })
      setState({ running: false, error: "", done: `Done: ${response.status}` })
      onDone?.(response, request, values)
    } catch (error) {
      setState({ running: false, error: error.message, done: "" })
    }
  }

  const set = (name) => (event) => setValues({ ...values, [name]: event.currentTarget.value })
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${run}>
      ${note && html`<p>${note}</p>`}
      ${fields.map((field) => html`<label key=${field.name}>
        ${field.label}
        ${field.kind === "text"
          ? html`<textarea rows="4" name=${field.name} value=${values[field.name]} onInput=${set(field.name)}></textarea>`
          : field.kind === "file"
            ? html`<input type="file" name=${field.name} onChange=${(event) => setFile(event.currentTarget.files[0] ?? null)} />`
            : field.choices
              ? html`<select name=${field.name} value=${values[field.name]} onChange=${set(field.name)}>
                  ${field.choices.map((choice) => html`<option key=${choice} value=${choice}>${choice}</option>`)}
                </select>`
              : html`<input name=${field.name} value=${values[field.name]} onInput=${set(field.name)} autocomplete="off" spellcheck=${false} />`}
        ${field.hint && html`<small>${field.hint}</small>`}
      </label>`)}
      <${Code} versions=${snippets(request, { hasToken: Boolean(token.value), file: file?.name })} />
      ${confirm !== undefined &&
      html`<label>Type <b>${confirm}</b> to confirm<input name="confirm" value=${typed} onInput=${(event) => setTyped(event.currentTarget.value)} autocomplete="off" /></label>`}
      ${lacks && html`<p class="lacks">The token lacks the scope <code>${lacks}</code>.</p>`}
      <div class="dialog-foot">
        <button class="primary" type="submit" disabled=${isBlocked}>${title.split(" ")[0]}</button>
        <span role="status">${state.done}</span>
        <span role="alert" class="error">${state.error}</span>
      </div>
    </form>
  <//>`
}

export function TokenDialog({ onClose }) {
  const [text, setText] = useState("")
  async function keep(event) {
    event.preventDefault()
    await setToken(text)
    setText("")
  }
  return html`<${Dialog} title="Token" onClose=${onClose}>
    <p>It stays in this tab until you close it, and is sent to this server alone.</p>
    <form onSubmit=${keep}>
      <label>Bearer token<textarea rows="3" name="token" value=${text} onInput=${(event) => setText(event.currentTarget.value)} autocomplete="off" spellcheck=${false}></textarea></label>
      <div class="dialog-foot">
        <button class="primary" type="submit">Use this token</button>
        <button type="button" onClick=${() => setToken("")}>Forget this token</button>
        <span role="alert" class="error">${meError.value}</span>
      </div>
    </form>
    <h3>What it may do</h3>
    ${me.value?.authorization === false
      ? html`<p>This server is open: everybody may do everything.</p>`
      : html`<ul class="scopes">
          ${(me.value?.scopes ?? []).map((scope) => html`<li key=${scope}><code>${scope}</code></li>`)}
          ${!me.value?.scopes.length && html`<li>Nothing.</li>`}
        </ul>`}
  <//>`
}

const KEYS = [
  ["/", "search or filter"],
  ["j, k", "next, previous"],
  ["Enter", "open"],
  ["p", "pause, or go on"],
  ["g", "go to the end"],
  ["?", "this help"],
]

export function HelpDialog({ onClose }) {
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <dl class="keys">${KEYS.map(([key, meaning]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${meaning}</dd></div>`)}</dl>
  <//>`
}
