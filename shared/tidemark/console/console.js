// The page: which of its parts is shown, and its keys.
import { render } from "./preact.js"
import { useEffect, useLayoutEffect, useState } from "./preact-hooks.js"
import { loadMe, me, needsToken, placeOf, silentSince, token } from "./api.js"
import { HelpDialog, TokenDialog } from "./dialogs.js"
import { Brand, Colours } from "./header.js"
import { html, visible } from "./html.js"
import { Inspector } from "./inspector.js"
import { parseAddress } from "./links.js"
import { Overview } from "./overview.js"
import { Banner, watchServer } from "./server.js"
import { StreamPage } from "./stream.js"
import { Streams } from "./streams.js"
import { Subscriptions } from "./subscriptions.js"
import "./signals.js"

const NAMED_KEYS = new Set(["j", "k", "p", "g", "Enter"])

// `arrival` counts the addresses that the reader went to. What a page itself writes into the address is none of them.
function useAddress() {
  const [address, setAddress] = useState({ ...parseAddress(location.hash), arrival: 0 })
  useEffect(() => {
    const look = () => setAddress((old) => ({ ...parseAddress(location.hash), arrival: old.arrival + 1 }))
    addEventListener("hashchange", look)
    return () => removeEventListener("hashchange", look)
  }, [])
  return address
}

// Keys work wherever nothing is typed, and not with a modifier. (Of all effects those of layout are made with the page:
// a key that comes before the browser has painted finds what it sees.)
function useKeys(setDialog) {
  useLayoutEffect(() => {
    function onKeyDown(event) {
      const { target } = event
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return
      if (target.closest("input, textarea, select") || target.isContentEditable) return
      if (event.key === "Enter" && target.closest("a, button, summary, [role=listbox]")) return
      if (event.key === "?") setDialog("help")
      else if (event.key === "/") document.getElementById("search")?.focus()
      else if (NAMED_KEYS.has(event.key)) dispatchEvent(new CustomEvent("console-key", { detail: event.key }))
      else return
      event.preventDefault()
    }
    addEventListener("keydown", onKeyDown)
    return () => removeEventListener("keydown", onKeyDown)
  }, [])
}

function Page({ place, query }) {
  if (place === "/streams") return html`<${Streams} />`
  if (place === "/subscriptions") return html`<${Subscriptions} query=${query} />`
  if (place === "/stream" && query.get("path")?.startsWith("/")) return html`<${StreamPage} path=${query.get("path")} />`
  if (place === "/") return html`<${Overview} />`
  return html`<main id="main" tabindex="-1"><h1>There is no such page</h1>
    <p><code>#${place}</code> is none of this console. Go to the <a href="#/">overview</a>, the <a href="#/streams">streams</a> or the <a href="#/subscriptions">subscriptions</a>.</p></main>`
}

const titleOf = ({ place, query }) =>
  ({ "/streams": "Streams", "/subscriptions": query.get("id") ?? "Subscriptions", "/stream": placeOf(query.get("path") ?? "").streamId, "/": "Overview" })[place] || "No such page"

function App() {
  const address = useAddress()
  const [dialog, setDialog] = useState("")
  const [isInspecting, setIsInspecting] = useState(false)
  useKeys(setDialog)
  useEffect(() => {
    loadMe()
    watchServer()
  }, [])
  useEffect(() => void (document.title = `${visible(titleOf(address))} – Tidemark`), [address])
  // Of these nothing can be shown, and each of their parts would say so.
  const isShut = needsToken.value && (!me.value.scopes.length || ["/", "/subscriptions"].includes(address.place))
  const tab = (place, name) => html`<a href=${`#${place}`} aria-current=${address.place === place ? "page" : null}>${name}</a>`
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus() }}>To the content</a>
    <header>
      <${Brand} />
      <nav aria-label="Pages">${tab("/", "Overview")}${tab("/streams", "Streams")}${tab("/subscriptions", "Subscriptions")}<a href="docs">API</a></nav>
      <span class="tools">
        <button onClick=${() => setDialog("token")}>${token.value ? "Token ✓" : "Token"}</button>
        <button aria-expanded=${isInspecting ? "true" : "false"} onClick=${() => setIsInspecting(!isInspecting)}>Requests</button>
        <${Colours} />
        <button onClick=${() => setDialog("help")} aria-label="Keys">?</button>
      </span>
    </header>
    <${Banner} />
    ${needsToken.value && html`<p class="notice" role="status">This server asks for a token. <button onClick=${() => setDialog("token")}>Paste one</button></p>`}
    <div class=${`frame ${isInspecting ? "inspecting" : ""} ${silentSince.value ? "silent" : ""}`}>
      ${isShut ? html`<main id="main" tabindex="-1"><h1>${titleOf(address)}</h1></main>` : html`<${Page} key=${address.arrival} ...${address} />`}
      ${isInspecting && html`<${Inspector} onClose=${() => setIsInspecting(false)} />`}
    </div>
    ${dialog === "token" && html`<${TokenDialog} onClose=${() => setDialog("")} />`}
    ${dialog === "help" && html`<${HelpDialog} onClose=${() => setDialog("")} />`}
  `
}

const app = document.getElementById("app")
app.replaceChildren()
render(html`<${App} />`, app)
