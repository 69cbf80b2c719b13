// The chat's server: it asks the model and writes the answer into Tidemark. Pages read from Tidemark themselves.
import { readFile } from "node:fs/promises"
import { createServer } from "node:http"
import { join } from "node:path"
import { Readable } from "node:stream"
import { convertToModelMessages, stepCountIs, streamText } from "ai"
import { model, tools } from "./model.mjs"
import * as store from "./store.mjs"

const PORT = Number(process.env.PORT ?? 3000)
/** The answers that this server writes, by URL. */
const writing = new Map()

/** Take a question, or the wish for another answer, and write the answer while the page reads it. */
async function ask({ id, messages, trigger }) {
  await store.createChat(id)
  const chat = await store.readChat(id)
  const question = trigger === "submit-message" ? messages.at(-1) : null
  const url = chat.answer ? null : await store.beginAnswer(id, question, chat)
  if (url === null) return Response.json({ error: "An answer is being written" }, { status: 409 })
  const kept = chat.messages.at(-1)?.role === "assistant" && !question ? chat.messages.slice(0, -1) : chat.messages
  const written = answer(url, question ? [...kept, question] : kept)
  writing.set(url, written.catch(console.error).finally(() => writing.delete(url)))
  return located(url, 201)
}

/** Where the page reads an answer. */
function located(url, status) {
  const streamUrl = store.readUrl(url)
  return Response.json({ streamUrl }, { status, headers: { Location: streamUrl } })
}

async function answer(url, messages) {
  const stop = await store.watchStop(url)
  await store.writeAnswer(url, chunksOf(messages, stop.signal))
  stop.abort()
}

/** The chunks of an answer. The message's metadata has the reason of an early end. */
async function* chunksOf(messages, abortSignal) {
  const early = (end) => ({ type: "message-metadata", messageMetadata: { end } })
  try {
    const asked = await convertToModelMessages(messages, { ignoreIncompleteToolCalls: true })
    const result = streamText({ model, tools, messages: asked, stopWhen: stepCountIs(5), abortSignal })
    for await (const chunk of result.toUIMessageStream({ generateMessageId: () => crypto.randomUUID() })) {
      if (chunk.type === "error") yield early("failed")
      else if (chunk.type === "abort") yield early("stopped")
      else yield chunk
    }
  } catch (error) {
    console.error(error)
    yield early("failed")
  }
}

async function route(request, path) {
  const [, , , id, action] = path.split("/").map(decodeURIComponent)
  if (request.method === "POST" && path === "/api/chat") return ask(await json(request))
  // Your login belongs here: it decides who may read and write this chat.
  if (request.method === "GET" && id && !action) return Response.json({ url: store.readUrl(await store.createChat(id)) })
  const { answer } = id ? await store.readChat(id) : {}
  if (request.method === "POST" && action === "stop") {
    if (answer) await store.requestStop(answer)
    return new Response(null, { status: 204 })
  }
  if (request.method === "GET" && action === "stream") {
    if (!answer) return new Response(null, { status: 204 })
    if (!writing.has(answer)) store.endIfLost(answer).catch(console.error)
    return located(answer, 200)
  }
  return Response.json({ error: `No ${request.method} ${path}` }, { status: 404 })
}

async function json(request) {
  const pieces = []
  for await (const piece of request) pieces.push(piece)
  return JSON.parse(Buffer.concat(pieces))
}

const TYPES = { html: "text/html", js: "text/javascript", css: "text/css" }
async function file(path) {
  const name = path === "/" ? "index.html" : path.slice(1)
  const body = await readFile(join(import.meta.dirname, "dist", name)).catch(() => null)
  if (body === null || name.includes("..")) return new Response("Not found", { status: 404 })
  return new Response(body, { headers: { "Content-Type": TYPES[name.split(".").at(-1)] ?? "application/octet-stream" } })
}

/** Pass a page's read on to Tidemark, with this server's token. */
async function passOn(request, response) {
  const stop = new AbortController()
  response.on("close", () => stop.abort())
  const read = await fetch(store.TIDEMARK + request.url.slice("/read".length), { headers: store.headers, signal: stop.signal })
  const headers = new Headers(read.headers)
  for (const name of ["content-encoding", "content-length", "transfer-encoding", "connection", "keep-alive"]) headers.delete(name)
  response.writeHead(read.status, Object.fromEntries(headers))
  if (read.body) Readable.fromWeb(read.body).on("error", () => response.destroy()).pipe(response)
  else response.end()
}

const server = createServer(async (request, response) => {
  const { pathname } = new URL(request.url, "http://chat")
  if (pathname.startsWith("/read/")) return passOn(request, response).catch(() => response.destroy())
  const answered = pathname.startsWith("/api/") ? route(request, pathname) : file(pathname)
  const given = await answered.catch((error) => Response.json({ error: error.message }, { status: 500 }))
  response.writeHead(given.status, Object.fromEntries(given.headers))
  response.end(Buffer.from(await given.arrayBuffer()))
})
server.listen(PORT, "127.0.0.1", () => console.log(`chat: http://127.0.0.1:${server.address().port}`))
store.endLostAnswers().catch(console.error)

// A deployment: answers end first. An answer that takes longer than the platform waits is cut off by the next server.
process.on("SIGTERM", async () => {
  server.close()
  await Promise.allSettled(writing.values())
  process.exit()
})
