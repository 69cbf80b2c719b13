// A request as curl, TypeScript and Python: what the console shows is what it sends.
import { addressOf } from "./links.js"

const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`
const quoted = (text) => JSON.stringify(text)

function python(text) {
  return JSON.stringify(text)
}

export function snippets({ method, path, headers = {}, body }, { hasToken = false, file = "" } = {}) {
  const url = addressOf(path)
  const named = Object.entries(headers)
  return {
    curl: [
      `curl -X ${method} ${shell(url)}`,
      ...(hasToken ? ['  -H "Authorization: Bearer $TIDEMARK_TOKEN"'] : []),
      ...named.map(([name, value]) => `  -H ${shell(`${name}: ${value}`)}`),
      ...(file ? [`  --data-binary @${shell(file)}`] : body ? [`  --data-binary ${shell(body)}`] : []),
    ].join(" \\\n"),
    TypeScript: [
      ...(file ? ['import { readFile } from "node:fs/promises"', ""] : []),
      `const response = await fetch(${quoted(url)}, {`,
      `  method: ${quoted(method)},`,
      ...(named.length || hasToken
        ? [
            "  headers: {",
            ...(hasToken ? ["    Authorization: `Bearer ${process.env.TIDEMARK_TOKEN}`,"] : []),
            ...named.map(([name, value]) => `    ${quoted(name)}: ${quoted(value)},`),
            "  },",
          ]
        : []),
      ...(file ? [`  body: await readFile(${quoted(file)}),`] : body ? [`  body: ${quoted(body)},`] : []),
      "})",
      "if (!response.ok) throw new Error(await response.text())",
    ].join("\n"),
    Python: [
      ...(hasToken ? ["import os"] : []),
      "import httpx",
      "",
      "response = httpx.request(",
      `    ${python(method)},`,
      `    ${python(url)},`,
      ...(named.length || hasToken
        ? [
            "    headers={",
            ...(hasToken ? ['        "Authorization": f"Bearer {os.environ[\'TIDEMARK_TOKEN\']}",'] : []),
            ...named.map(([name, value]) => `        ${python(name)}: ${python(value)},`),
            "    },",
          ]
        : []),
      ...(file ? [`    content=open(${python(file)}, "rb"),`] : body ? [`    content=${python(body)}.encode(),`] : []),
      ")",
      "response.raise_for_status()",
    ].join("\n"),
  }
}

// Following a stream, by the official clients.
export function readSnippets(path, offset, { hasToken = false } = {}) {
  const url = addressOf(path)
  const header = hasToken ? `, headers: { Authorization: \`Bearer \${process.env.TIDEMARK_TOKEN}\` }` : ""
  return {
    curl: `curl -N ${hasToken ? '-H "Authorization: Bearer $TIDEMARK_TOKEN" ' : ""}${shell(`${url}?offset=${offset}&live=sse`)}`,
    TypeScript: [
      'import { stream } from "@durable-streams/client"',
      "",
      `const response = await stream({ url: ${quoted(url)}, offset: ${quoted(offset)}, live: true${header} })`,
      "response.subscribeBytes((chunk) => console.log(chunk.offset, chunk.data))",
    ].join("\n"),
    Python: [
      ...(hasToken ? ["import os"] : []),
      "from durable_streams import stream",
      "",
      `with stream(${python(url)}, offset=${python(offset)}, live="long-poll"${hasToken ? `, headers={"Authorization": f"Bearer {os.environ['TIDEMARK_TOKEN']}"}` : ""}) as response:`,
      '    for event in response.iter_events(mode="bytes"):',
      "        print(event.next_offset, event.data)",
    ].join("\n"),
  }
}
