// The model and its tool. Without a key, a built-in model streams a canned answer.
import { anthropic } from "@ai-sdk/anthropic"
import { openai } from "@ai-sdk/openai"
import { jsonSchema, tool } from "ai"

const WORD_MS = Number(process.env.WORD_MS ?? 60)
const ANSWER = "There are two tides a day because the earth turns under two bulges of water. One faces the moon, and one lies on the far side. "

const { OPENAI_API_KEY, ANTHROPIC_API_KEY, MODEL } = process.env
export const model = OPENAI_API_KEY
  ? openai(MODEL ?? "gpt-5-mini")
  : ANTHROPIC_API_KEY
    ? anthropic(MODEL ?? "claude-haiku-4-5")
    : { specificationVersion: "v3", provider: "built-in", modelId: "canned", supportedUrls: {}, doGenerate, doStream }

export const tools = {
  highTide: tool({
    description: "The next high tide at a place.",
    inputSchema: jsonSchema({ type: "object", properties: { place: { type: "string" } }, required: ["place"] }),
    execute: async ({ place }) => {
      console.log(`highTide ${place}`)
      return { place, time: "18:12", meters: 4.1 }
    },
  }),
}

async function doGenerate() {
  throw new Error("the built-in model only streams")
}

/** Call the tool once, then answer word by word. */
async function doStream({ prompt, abortSignal }) {
  const hasLooked = prompt.at(-1).role === "tool"
  async function* parts() {
    yield { type: "stream-start", warnings: [] }
    if (!hasLooked) {
      const input = JSON.stringify({ place: "Bristol" })
      yield { type: "tool-call", toolCallId: crypto.randomUUID(), toolName: "highTide", input }
    } else {
      yield { type: "text-start", id: "answer" }
      for (const [number, word] of ANSWER.repeat(2).trim().split(" ").entries()) {
        await new Promise((resolve) => setTimeout(resolve, WORD_MS))
        abortSignal?.throwIfAborted()
        yield { type: "text-delta", id: "answer", delta: number ? ` ${word}` : word }
      }
      yield { type: "text-end", id: "answer" }
    }
    const none = { total: undefined }
    const finishReason = { unified: hasLooked ? "stop" : "tool-calls", raw: undefined }
    yield { type: "finish", usage: { inputTokens: none, outputTokens: none }, finishReason }
  }
  return { stream: ReadableStream.from(parts()) }
}
