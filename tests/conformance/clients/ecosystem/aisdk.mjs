// @durable-streams/aisdk-transport with the AI SDK itself: an answer is streamed, and read again after a reload.
import assert from "node:assert/strict"
import { createServer } from "node:http"
import { readUIMessageStream } from "ai"
import { createDurableChatTransport, toDurableStreamResponse } from "@durable-streams/aisdk-transport"

const writeUrl = `${process.env.BASE_URL}/v1/stream/aisdk-${crypto.randomUUID()}`
const WORDS = ["The ", "tide ", "is ", "high."]
const nextTurn = () => new Promise((resolve) => setTimeout(resolve, 20))

async function* answer() {
  yield { type: "start", messageId: "m1" }
  yield { type: "text-start", id: "t1" }
  for (const delta of WORDS) {
    await nextTurn()
    yield { type: "text-delta", id: "t1", delta }
  }
  yield { type: "text-end", id: "t1" }
  yield { type: "finish" }
}

// A chat's own two routes: POST starts an answer, GET says where it is.
const chat = createServer(async (request, response) => {
  const given = request.method === "POST"
    ? await toDurableStreamResponse({ source: answer(), stream: { writeUrl, readUrl: writeUrl } })
    : Response.json({ streamUrl: writeUrl }, { headers: { Location: writeUrl } })
  response.writeHead(given.status, Object.fromEntries(given.headers))
  response.end(Buffer.from(await given.arrayBuffer()))
})
await new Promise((resolve) => chat.listen(0, "127.0.0.1", resolve))

async function textOf(stream) {
  let message
  for await (message of readUIMessageStream({ stream })) { /* the last is whole */ }
  return message.parts.filter((part) => part.type === "text").map((part) => part.text).join("")
}

const transport = createDurableChatTransport({ api: `http://127.0.0.1:${chat.address().port}/chat` })
const question = [{ id: "q", role: "user", parts: [{ type: "text", text: "How is the tide?" }] }]
assert.equal(await textOf(await transport.sendMessages({ trigger: "submit-message", chatId: "c", messages: question })), WORDS.join(""))
assert.equal(await textOf(await transport.reconnectToStream({ chatId: "c" })), WORDS.join(""))
process.exit(0)
