// The OpenAPI document of this server as a page.
import { render } from "./preact.js"
import { useEffect, useState } from "./preact-hooks.js"
import { getJson } from "./api.js"
import "./colours.js"
import { Code } from "./dialogs.js"
import { html } from "./html.js"
import { snippets } from "./snippets.js"

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

function Operation({ document, path, method, operation, shared }) {
  const parameters = [...shared, ...(operation.parameters ?? [])].map((each) => resolve(document, each))
  const filled = parameters.filter((each) => each.in === "path").reduce((at, each) => at.replace(`{${each.name}}`, example(each)), path)
  const scopes = (operation.security ?? []).flatMap((each) => each.bearer ?? [])
  const body = method === "put" && !operation.requestBody?.content["application/json"] ? "" : exampleBody(document, operation)
  return html`<details class="operation" id=${operation.operationId}>
    <summary><b class=${`method ${method}`}>${method.toUpperCase()}</b> <code>${path}</code> <span>${operation.summary}</span></summary>
    ${scopes.length > 0 && html`<p>Right: ${scopes.map((each, index) => html`${index ? " or " : ""}<code>${each}</code>`)}</p>`}
    ${parameters.length > 0 &&
    html`<table><caption>Parameters</caption><thead><tr><th scope="col">name</th><th scope="col">in</th><th scope="col">what it is</th><th scope="col">for example</th></tr></thead>
      <tbody>${parameters.map((each) => html`<tr key=${each.name}><td><code>${each.name}</code></td><td>${each.in}</td><td>${each.description}</td><td>${shown(each) !== undefined && html`<code>${String(shown(each))}</code>`}</td></tr>`)}</tbody></table>`}
    <table><caption>Responses</caption><thead><tr><th scope="col">status</th><th scope="col">meaning</th><th scope="col">body</th></tr></thead>
      <tbody>${Object.entries(operation.responses).map(([status, part]) => {
        const response = resolve(document, part)
        const [type, content] = Object.entries(response.content ?? {})[0] ?? []
        return html`<tr key=${status}><td>${status}</td><td>${response.description}</td><td>${type}${content?.schema && type === "application/json" && Number(status) < 300 && html` <${Schema} document=${document} schema=${content.schema} />`}</td></tr>`
      })}</tbody></table>
    <${Code} versions=${snippets({ method: method.toUpperCase(), path: filled, headers: method === "put" || method === "post" ? { "Content-Type": "application/json" } : {}, body })} />
  </details>`
}

function Docs() {
  const [document, setDocument] = useState(null)
  const [error, setError] = useState("")
  useEffect(() => void getJson("/v1/openapi.json").then(setDocument, (failure) => setError(failure.message)), [])
  if (!document) return html`<main><p role="alert" class="error">${error}</p></main>`
  return html`<header><a class="brand" href="../" aria-label="Tidemark"><img src="console/icon.svg" alt="" width="24" height="24" /><span>Tidemark</span></a><nav aria-label="Pages"><a href="console">Overview</a><a href="console#/streams">Streams</a><a href="console#/subscriptions">Subscriptions</a><a href="docs" aria-current="page">API</a></nav></header>
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
