// @durable-streams/tanstack-ai-transport: a chat session that two readers follow, and its snapshot with the offset to go on from.
import assert from "node:assert/strict"
import {
  durableStreamConnection, materializeSnapshotFromDurableStream, toDurableChatSessionResponse,
} from "@durable-streams/tanstack-ai-transport"

const url = `${process.env.BASE_URL}/v1/stream/tanstack-${crypto.randomUUID()}`
const WORDS = ["The ", "tide ", "is ", "high."]

async function* chunks(messageId) {
  yield { type: "TEXT_MESSAGE_START", messageId, role: "assistant" }
  for (const delta of WORDS) yield { type: "TEXT_MESSAGE_CONTENT", messageId, delta }
  yield { type: "TEXT_MESSAGE_END", messageId }
}

const question = (id) => ({ id, role: "user", parts: [{ type: "text", content: "How is the tide?" }] })
const ask = (id) => toDurableChatSessionResponse({
  stream: { writeUrl: url }, newMessages: [question(`q-${id}`)], responseStream: chunks(`a-${id}`), mode: "await",
})
assert.ok((await ask(1)).ok)

const snapshot = await materializeSnapshotFromDurableStream({ readUrl: url })
const textOf = (message) => message.parts.map((part) => part.content).join("")
assert.deepEqual(snapshot.messages.map(textOf), ["How is the tide?", WORDS.join("")])

// One begins at the snapshot's offset, one at the beginning: both get the second answer live.
for (const initialOffset of [snapshot.offset, undefined]) {
  const connection = durableStreamConnection({ sendUrl: url, readUrl: url, initialOffset })
  const leaving = new AbortController()
  const reading = (async () => {
    let text = ""
    for await (const chunk of connection.subscribe(leaving.signal)) {
      if (chunk.type === "MESSAGES_SNAPSHOT") assert.ok(chunk.messages.length >= 2)
      if (chunk.type === "TEXT_MESSAGE_CONTENT" && chunk.messageId === `a-${initialOffset}`) text += chunk.delta
      if (text === WORDS.join("")) return
    }
  })()
  await new Promise((resolve) => setTimeout(resolve, 500))
  assert.ok((await ask(initialOffset)).ok)
  await reading
  leaving.abort()
}
process.exit(0)
