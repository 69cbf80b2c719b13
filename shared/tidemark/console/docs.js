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

function Operation({ document, path, method, operation, shared }) {
  const parameters = [...shared, ...(operation.parameters ?? [])].map((each) => resolve(document, each))
  const sends = method === "put" || method === "post"
  const [values, setValues] = useState(() => ({ ...Object.fromEntries(parameters.filter((each) => each.in === "path").map((each) => [each.name, example(each)])), ...(sends ? { "Content-Type": "application/json" } : {}) }))
  const [body, setBody] = useState(method === "put" && !operation.requestBody?.content["application/json"] ? "" : exampleBody(document, operation))
  const scopes = (operation.security ?? []).flatMap((each) => each.bearer ?? [])
  const typed = sends && !parameters.some((each) => each.name === "Content-Type") ? [...parameters, { name: "Content-Type", in: "header" }] : parameters
  const request = requestOf(path, method, typed, values, body)
  return html`<details class="operation" id=${operation.operationId}>
    <summary><b class=${`method ${method}`}>${method.toUpperCase()}</b> <code>${path}</code> <span>${operation.summary}</span></summary>
    ${scopes.length > 0 && html`<p>Right: ${scopes.map((each, index) => html`${index ? " or " : ""}<code>${each}</code>`)}</p>`}
    ${parameters.length > 0 &&
    html`<div class="wide"><table><caption>Parameters</caption><thead><tr><th scope="col">name</th><th scope="col">in</th><th scope="col">what it is</th><th scope="col">value</th></tr></thead>
      <tbody>${parameters.map((each) => html`<tr key=${each.name}><td><code>${each.name}</code></td><td>${each.in}</td><td>${each.description}</td><td><input aria-label=${each.name} value=${values[each.name] ?? ""} placeholder=${shown(each) ?? ""} onInput=${(event) => setValues({ ...values, [each.name]: event.currentTarget.value })} autocomplete="off" spellcheck=${false} /></td></tr>`)}</tbody></table></div>`}
    ${sends && html`<label>Body<textarea rows="2" value=${body} onInput=${(event) => setBody(event.currentTarget.value)} spellcheck=${false}></textarea></label>`}
    <div class="wide" tabindex="0"><table><caption>Responses</caption><thead><tr><th scope="col">status</th><th scope="col">meaning</th><th scope="col">body</th></tr></thead>
      <tbody>${Object.entries(operation.responses).map(([status, part]) => {
        const response = resolve(document, part)
        const [type, content] = Object.entries(response.content ?? {})[0] ?? []
        return html`<tr key=${status}><td>${status}</td><td>${response.description}</td><td>${type}${content?.schema && type === "application/json" && Number(status) < 300 && html` <${Schema} document=${document} schema=${content.schema} />`}</td></tr>`
      })}</tbody></table></div>
    <${Code} versions=${snippets(request)} />
    <${Try} request=${request} />
  </details>`
}

function Docs() {
  const [document, setDocument] = useState(null)
  const [error, setError] = useState("")
  const [asksToken, setAsksToken] = useState(false)
  useEffect(() => void getJson("/v1/openapi.json").then(setDocument, (failure) => setError(failure.message)), [])
  if (!document) return html`<main><p role="alert" class="error">${error}</p></main>`
  return html`<header><${Brand} /><nav aria-label="Pages"><a href="console">Overview</a><a href="console#/streams">Streams</a><a href="console#/subscriptions">Subscriptions</a><a href="docs" aria-current="page">API</a></nav><span class="tools"><button onClick=${() => setAsksToken(true)}>Token</button><${Colours} /></span></header>
    ${asksToken && html`<${TokenDialog} onClose=${() => setAsksToken(false)} />`}
    <main id="main" class="docs"><h1>${document.info.title} ${document.info.version}</h1><p>${document.info.description} <a href="openapi.json">As an OpenAPI document</a></p>
    ${document.tags.map(({ name, description }) => html`<section key=${name} aria-labelledby=${`tag-${name}`}><h2 id=${`tag-${name}`}>${name}</h2><p>${description}</p>
      ${Object.entries(document.paths).map(([path, operations]) =>
        METHODS.filter((method) => operations[method]?.tags.includes(name)).map(
          (method) => html`<${Operation} key=${`${method} ${path}`} document=${document} path=${path} method=${method} operation=${operations[method]} shared=${operations.parameters ?? []} />`,
        ),
      )}</section>`)}</main>`
}

const app = globalThis.document.getElementById("app")
app.replaceChildren()
render(html`<${Docs} />`, app)
