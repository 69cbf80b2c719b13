// The OpenAPI document of this server as a page.
import { render } from "./preact.js"
import { useEffect, useState } from "./preact-hooks.js"
import { getJson } from "./api.js"
import { Code, TokenDialog } from "./dialogs.js"
import { Brand, Colours } from "./header.js"
import { html } from "./html.js"
import { snippets } from "./snippets.js"
import { Try } from "./try.js"

const METHODS = ["get", "head", "put", "post", "delete"]

const resolve = (document, part) => (part?.$ref ? part.$ref.split("/").slice(1).reduce((at, name) => at[name], document) : part)
const shown = (parameter) => parameter.example ?? parameter.schema?.example ?? parameter.schema?.examples?.[0] ?? parameter.schema?.anyOf?.[0]?.examples?.[0]
const example = (parameter) => shown(parameter) ?? parameter.name

// One entry for an operation: its other paths, and HEAD where it is GET without the body, are lines of it.
function entriesOf({ paths }) {
  const entries = new Map()
  for (const [path, item] of Object.entries(paths)) {
    for (const method of METHODS.filter((each) => item[each])) {
      const id = item[method].operationId.replace(/(ByAlias|InBucket)$/, "")
      const known = entries.get(id) ?? (method === "head" && entries.get(id.replace(/Metadata$/, "")))
      if (known) known.beside.push([method, path])
      else entries.set(id, { path, method, operation: item[method], shared: item.parameters ?? [], beside: [] })
    }
  }
  return [...entries.values()]
}

const textOf = ({ path, method, operation, beside }) => [method, path, operation.summary, operation.description, beside].join(" ").toLowerCase()
// Words between backticks are code.
const marked = (text) => text.split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part))

// What a body of this schema looks like.
function sample(document, schema, depth = 0) {
  const found = resolve(document, schema)
  const shown = found?.example ?? found?.examples?.[0] ?? found?.const ?? found?.enum?.[0] ?? found?.default
  if (shown !== undefined || !found || depth > 4) return shown ?? null
  if (found.anyOf) return sample(document, found.anyOf[0], depth + 1)
  if (found.type === "array") return [sample(document, found.items, depth + 1)]
  if (found.properties) return Object.fromEntries(Object.entries(found.properties).map(([name, each]) => [name, sample(document, each, depth + 1)]))
  return { integer: 0, number: 0, boolean: true, string: "…" }[found.type] ?? null
}

// A body as the document shows one. A stream takes whatever is of its type.
function exampleBody(document, operation) {
  if (!operation.requestBody) return ""
  const schema = resolve(document, operation.requestBody.content["application/json"]?.schema)
  return JSON.stringify(schema?.examples?.[0] ?? { n: 1 })
}

function Schema({ document, schema, depth = 0 }) {
  const found = resolve(document, schema)
  if (!found) return null
  if (found.type === "array") return html`list of <${Schema} document=${document} schema=${found.items} depth=${depth} />`
  if (found.anyOf) return found.anyOf.map((each, index) => html`${index ? " or " : ""}<${Schema} document=${document} schema=${each} depth=${depth} />`)
  if (!found.properties || depth > 3) return html`<code>${found.const ?? found.enum?.join(" | ") ?? found.type ?? "anything"}</code>`
  return html`<ul class="schema">${Object.entries(found.properties).map(([name, each]) => html`<li key=${name}><code>${name}</code>: <${Schema} document=${document} schema=${each} depth=${depth + 1} /> <span class="hint">${each.description}</span></li>`)}</ul>`
}

// The request with what is filled in. A slash in a name stays one: the names of streams have some.
function requestOf(path, method, parameters, values, body) {
  const given = (place) => parameters.filter((each) => each.in === place && values[each.name]).map(({ name }) => [name, String(values[name])])
  const filled = given("path").reduce((at, [name, value]) => at.replace(`{${name}}`, encodeURIComponent(value).replaceAll("%2F", "/")), path)
  const query = new URLSearchParams(given("query"))
  return { method: method.toUpperCase(), path: `${filled}${query.size ? `?${query}` : ""}`, headers: Object.fromEntries(given("header")), body }
}

function Operation({ document, path, method, operation, shared, beside }) {
  const parameters = [...shared, ...(operation.parameters ?? [])].map((each) => resolve(document, each))
  const sends = method === "put" || method === "post"
  const [values, setValues] = useState(() => ({ ...Object.fromEntries(parameters.filter((each) => each.in === "path").map((each) => [each.name, example(each)])), ...(sends ? { "Content-Type": "application/json" } : {}) }))
  const [body, setBody] = useState(method === "put" && !operation.requestBody?.content["application/json"] ? "" : exampleBody(document, operation))
  const scopes = (operation.security ?? []).flatMap((each) => each.bearer ?? [])
  const typed = sends && !parameters.some((each) => each.name === "Content-Type") ? [...parameters, { name: "Content-Type", in: "header" }] : parameters
  const request = requestOf(path, method, typed, values, body)
  return html`<details class="operation" id=${operation.operationId}>
    <summary><b class=${`method ${method}`}>${method.toUpperCase()}</b> <code>${path}</code> <span>${marked(operation.summary)}</span></summary>
    ${beside.length > 0 && html`<p>Also ${beside.map(([each, place], index) => html`${index ? ", " : ""}<b class=${`method ${each}`}>${each.toUpperCase()}</b> <code>${place}</code>`)}</p>`}
    ${scopes.length > 0 && html`<p>Right: ${scopes.map((each, index) => html`${index ? " or " : ""}<code>${each}</code>`)}</p>`}
    ${parameters.length > 0 &&
    html`<div class="wide"><table><caption>Parameters</caption><thead><tr><th scope="col">name</th><th scope="col">in</th><th scope="col">what it is</th><th scope="col">value</th></tr></thead>
      <tbody>${parameters.map((each) => html`<tr key=${each.name}><td><code>${each.name}</code></td><td>${each.in}</td><td>${each.description}</td><td><input aria-label=${each.name} value=${values[each.name] ?? ""} placeholder=${shown(each) ?? ""} onInput=${(event) => setValues({ ...values, [each.name]: event.currentTarget.value })} autocomplete="off" spellcheck=${false} /></td></tr>`)}</tbody></table></div>`}
    ${sends && html`<label>Body<textarea rows="2" value=${body} onInput=${(event) => setBody(event.currentTarget.value)} spellcheck=${false}></textarea></label>`}
    <div class="wide" tabindex="0"><table><caption>Responses</caption><thead><tr><th scope="col">status</th><th scope="col">meaning</th><th scope="col">body</th></tr></thead>
      <tbody>${Object.entries(operation.responses).map(([status, part]) => {
        const response = resolve(document, part)
        const [type, content] = Object.entries(response.content ?? {})[0] ?? []
        return html`<tr key=${status}><td>${status}</td><td>${response.description}</td><td>${type}${content?.schema && type === "application/json" && Number(status) < 300 && html` <${Schema} document=${document} schema=${content.schema} />
          ${resolve(document, content.schema)?.properties && html`<pre>${JSON.stringify(sample(document, content.schema), null, 1)}</pre>`}`}</td></tr>`
      })}</tbody></table></div>
    <${Code} versions=${snippets(request)} />
    <${Try} request=${request} />
  </details>`
}

function Docs() {
  const [document, setDocument] = useState(null)
  const [error, setError] = useState("")
  const [asksToken, setAsksToken] = useState(false)
  const [sought, setSought] = useState("")
  useEffect(() => void getJson("/v1/openapi.json").then(setDocument, (failure) => setError(failure.message)), [])
  if (!document) return html`<main><p role="alert" class="error">${error}</p></main>`
  const found = entriesOf(document).filter((each) => textOf(each).includes(sought.trim().toLowerCase()))
  return html`<header><${Brand} /><nav aria-label="Pages"><a href="console">Overview</a><a href="console#/streams">Streams</a><a href="console#/subscriptions">Subscriptions</a><a href="docs" aria-current="page">API</a></nav><span class="tools"><button onClick=${() => setAsksToken(true)}>Token</button><${Colours} /></span></header>
    ${asksToken && html`<${TokenDialog} onClose=${() => setAsksToken(false)} />`}
    <main id="main" class="docs"><h1>${document.info.title} ${document.info.version}</h1><p>${document.info.description} <a href="openapi.json">As an OpenAPI document</a></p>
    <p><input type="search" aria-label="Search operations" placeholder="Search operations" value=${sought} onInput=${(event) => setSought(event.currentTarget.value)} /></p>
    ${!found.length && html`<p role="status">No operation has this in its path or description.</p>`}
    ${document.tags.map(({ name, description }) => {
      const own = found.filter((each) => each.operation.tags.includes(name))
      return own.length > 0 && html`<section key=${name} aria-labelledby=${`tag-${name}`}><h2 id=${`tag-${name}`}>${name}</h2><p>${description}</p>
        ${own.map((each) => html`<${Operation} key=${each.operation.operationId} document=${document} ...${each} />`)}</section>`
    })}</main>`
}

const app = globalThis.document.getElementById("app")
app.replaceChildren()
render(html`<${Docs} />`, app)
