// Answers by SDKs with the `fetch` of `/v1/proxy.js`: prints the text and the error of each task.
import Anthropic from "@anthropic-ai/sdk"
import { createOpenAI } from "@ai-sdk/openai"
import { generateText, streamText } from "ai"
import OpenAI from "openai"

const { module, tasks } = JSON.parse(process.env.TASK)
const { durableFetch } = await import(module)
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

const answers = {
  async *openai({ given, asked, isWhole, signal }) {
    const made = await new OpenAI(given).chat.completions.create(asked, { signal })
    if (isWhole) return yield made.choices[0].message.content
    for await (const chunk of made) yield chunk.choices[0]?.delta?.content ?? ""
  },
  async *anthropic({ given, asked, isWhole, signal }) {
    const made = await new Anthropic(given).messages.create(asked, { signal })
    if (isWhole) return yield made.content[0].text
    for await (const event of made) if (event.type === "content_block_delta") yield event.delta.text
  },
  async *ai({ given, asked, isWhole, signal }) {
    const options = { model: createOpenAI(given).chat(asked.model), prompt: "Why tides?", abortSignal: signal, maxRetries: given.maxRetries, onError() {} }
    if (isWhole) return yield (await generateText(options)).text
    for await (const part of streamText(options).fullStream) {
      if (part.type === "error") throw part.error
      if (part.type === "text-delta") yield part.text
    }
  },
  async *none({ given }) {
    const calls = ["/chat", "ftp://x/y", new URL("data:,x")].map((url) => given.fetch(url).catch((error) => error.message))
    yield (await Promise.all(calls)).join("\n")
    durableFetch({ url: "127.0.0.1:4437" })
  },
}

// A server that refuses the first requests of each method, and whose answers take `laterMs` more by the clock.
function network({ busy = 0, laterMs = 0 }, asked) {
  const now = Date.now
  return async (url, { method = "GET", ...init }) => {
    asked[method] = (asked[method] ?? 0) + 1
    if (asked[method] <= busy) return new Response("busy", { status: method === "POST" ? 503 : 429, headers: { "Retry-After": "1" } })
    const response = await fetch(url, { method, ...init })
    Date.now = () => now() + laterMs * asked.POST
    return response
  }
}

async function abortOnceAsked(controller, upstream) {
  while ((await (await fetch(`${upstream}/asked`)).text()) === "0") await pause(10)
  controller.abort()
  await fetch(`${upstream}/go`)
}

async function run({ sdk, url, token, upstream, key, apiKey = "unused", retries = 0, isWhole, ...task }) {
  const controller = new AbortController()
  const requests = {}
  const options = { url, token: async () => token, key: key && (async (request) => key + (await request.text()).length) }
  const given = {
    apiKey,
    baseURL: upstream,
    fetch: durableFetch({ ...options, fetch: network(task, requests) }),
    maxRetries: retries,
    defaultHeaders: { "x-api-key": "unused" },
  }
  const asked = { model: "m", max_tokens: 9, messages: [{ role: "user", content: "Why tides?" }], stream: !isWhole }
  let text = ""
  if (task.abortEarly) abortOnceAsked(controller, upstream)
  try {
    let count = 0
    for await (const each of answers[sdk]({ given, asked, isWhole, signal: controller.signal })) {
      text += each
      count += 1
      if (count === task.abortAfter) controller.abort()
      if (task.pauseEach && count % task.pauseEach === 0) await pause(100)
    }
    return { text }
  } catch (error) {
    const headers = Object.fromEntries(new Headers(error.responseHeaders ?? error.headers))
    const message = [error.message, error.cause?.message].filter(Boolean).join(": ")
    return { text, requests, error: { name: error.constructor.name, message, status: error.status ?? error.statusCode, headers } }
  }
}

const results = []
for (const task of tasks) results.push(await run(task))
console.log(JSON.stringify(results))
