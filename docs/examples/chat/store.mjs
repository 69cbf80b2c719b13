// Chats and answers in Tidemark: a stream of entries for each chat (`src/history.mjs`), and a stream of chunks for each answer.
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"
import { readUIMessageStream } from "ai"
import { fold } from "./src/history.mjs"

export const TIDEMARK = process.env.TIDEMARK_URL ?? "http://127.0.0.1:4437"
export const headers = process.env.TIDEMARK_TOKEN ? { Authorization: `Bearer ${process.env.TIDEMARK_TOKEN}` } : {}
const json = { ...headers, "Content-Type": "application/json" }
/** The writer of an answer that is silent for longer has died. A living writer appends three times as often. */
const LOST_MS = Number(process.env.LOST_MS ?? 30_000)
const DAY = 86_400

export const chatUrl = (chatId) => `${TIDEMARK}/v1/stream/chats/${encodeURIComponent(chatId)}`
const answersUrl = (chatId) => `${TIDEMARK}/v1/stream/answers/${encodeURIComponent(chatId)}`
/** The URL that pages read: with a token, a path of this server, which passes the read on. */
export const readUrl = (url) => (process.env.TIDEMARK_TOKEN ? `/read${new URL(url).pathname}` : url)
const chatOf = (answer) => decodeURIComponent(answer.split("/").at(-2))

/** Send a request again while storage or the network fails. Each request here may be repeated. */
async function patient(url, options) {
  for (let wait = 100; ; wait = Math.min(2 * wait, 5_000)) {
    const response = await fetch(url, options).catch((error) => {
      if (options.signal?.aborted) throw error
      return null
    })
    if (response && response.status !== 429 && response.status < 500) return response
    await new Promise((resolve) => setTimeout(resolve, wait))
  }
}

/** The messages of a stream so far. */
const readAll = async (url) => (await stream({ url, headers, offset: "-1", live: false, json: true })).json()

export async function createChat(chatId) {
  const made = await patient(chatUrl(chatId), { method: "PUT", headers: json })
  if (!made.ok) throw new Error(await made.text())
  return chatUrl(chatId)
}

/** Read all messages of a chat, the answer that is being written, and the entity tag of the chat's tail. */
export async function readChat(chatId) {
  const url = chatUrl(chatId)
  const head = await patient(url, { method: "HEAD", headers })
  if (head.status === 404) return { messages: [], answer: null, etag: "" }
  return { ...fold(await readAll(url)), etag: head.headers.get("etag") }
}

/** Append entries to a chat in one piece. With `etag`, return false if another entry was first. */
async function append(chatId, entries, etag) {
  const conditions = etag ? { "If-Match": etag } : {}
  const options = { method: "POST", headers: { ...json, ...conditions }, body: JSON.stringify(entries) }
  const response = await patient(chatUrl(chatId), options)
  if (!response.ok && response.status !== 412) throw new Error(await response.text())
  return response.ok
}

/** Begin an answer. Returns the URL of its stream, or null if another answer of the chat is being written. */
export async function beginAnswer(chatId, question, { etag }) {
  const url = `${answersUrl(chatId)}/${crypto.randomUUID()}`
  await DurableStream.create({ url, headers, contentType: "application/json", ttlSeconds: DAY, fetch: patient })
  await DurableStream.create({ url: `${url}.stop`, headers, contentType: "text/plain", ttlSeconds: DAY, fetch: patient })
  const entries = question ? [{ message: question }, { answer: url }] : [{ answer: url }]
  return (await append(chatId, entries, etag)) ? url : null
}

/** Write the chunks of an answer, then the whole message. A writer with a later epoch replaces this one. */
export async function writeAnswer(url, chunks) {
  const handle = new DurableStream({ url, headers, contentType: "application/json" })
  const options = { epoch: Date.now(), lingerMs: 200, maxInFlight: 1, fetch: patient, onError: console.error }
  const producer = new IdempotentProducer(handle, "writer", options)
  const alive = setInterval(() => producer.append('{"type":"data-alive","transient":true}'), LOST_MS / 3)
  try {
    for await (const chunk of chunks) producer.append(JSON.stringify(chunk))
  } finally {
    clearInterval(alive)
    await producer.flush()
    await saveMessage(url)
    await producer.close()
  }
}

/** Compose the message of an answer from its chunks, and append the message to the chat. */
async function saveMessage(url) {
  const chunks = await readAll(url)
  let message
  for await (message of readUIMessageStream({ stream: ReadableStream.from(chunks), onError: () => {} })) continue
  await append(chatOf(url), [{ message: message ?? { id: crypto.randomUUID(), role: "assistant", parts: [], metadata: { end: "cut" } } }])
}

export const requestStop = (url) => new DurableStream({ url: `${url}.stop`, headers, fetch: patient }).close()

/** A signal that aborts when somebody asks the answer to stop, on this server or another. */
export async function watchStop(url) {
  const stop = new AbortController()
  const response = await stream({ url: `${url}.stop`, headers, live: "long-poll", signal: stop.signal, fetch: patient })
  response.subscribeText(() => {})
  response.closed.then(() => stop.abort(), () => {})
  return stop
}

/** End an answer whose writer has died, or look again when that is certain. */
export async function endIfLost(url) {
  const name = decodeURIComponent(url.split("/v1/stream/")[1])
  const listed = await patient(`${TIDEMARK}/v1/streams?limit=1&prefix=${encodeURIComponent(name)}`, { headers })
  const [row] = (await listed.json()).streams
  if (row?.stream_id !== name || (await readChat(chatOf(url))).answer !== url) return
  const left = row.status === "Open" ? row.last_write_at_ms + LOST_MS - Date.now() : 0
  if (left > 0) return void setTimeout(() => endIfLost(url).catch(console.error), left)
  if (row.status !== "Open") return saveMessage(url)
  await writeAnswer(url, [{ type: "message-metadata", messageMetadata: { end: "cut" } }, { type: "finish" }])
}

/** The answers that other servers, or an earlier run of this one, have left open. */
export async function endLostAnswers() {
  for (let after = "", more = true; more; ) {
    const query = `prefix=answers/&limit=1000&after=${encodeURIComponent(after)}`
    const page = await (await patient(`${TIDEMARK}/v1/streams?${query}`, { headers })).json()
    const open = page.streams.filter((row) => row.status === "Open" && !row.stream_id.endsWith(".stop"))
    for (const row of open) endIfLost(`${TIDEMARK}/v1/stream/${row.stream_id.split("/").map(encodeURIComponent).join("/")}`).catch(console.error)
    after = page.streams.at(-1)?.stream_id
    more = page.has_more
  }
}
