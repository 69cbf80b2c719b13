// Ask the agent and print its answer as it is written: node ask.mjs "Why are there two tides a day?"
// Without a question: print the thread, and go on with the run under way. Ctrl-C leaves the run running.
import { existsSync, readFileSync, writeFileSync } from "node:fs"
import { TidemarkAgent } from "./tidemark-agent.mjs"

const [question] = process.argv.slice(2)
const FILE = process.env.SAVED ?? "thread.json" // a page takes localStorage
const kept = existsSync(FILE) ? JSON.parse(readFileSync(FILE, "utf8")) : { threadId: crypto.randomUUID() }
const agent = new TidemarkAgent({ url: process.env.AGENT_URL ?? "http://127.0.0.1:8000/agent", ...kept })
const keep = () => writeFileSync(FILE, JSON.stringify({ threadId: agent.threadId, saved: agent.saved }))
keep()

for (const { role, content } of agent.messages) if (content) console.log(`${role}: ${content}`)
const print = {
  onRunStartedEvent: ({ event }) => event.input.messages.forEach(({ role, content }) => console.log(`${role}: ${content}`)),
  onTextMessageStartEvent: ({ event }) => void process.stdout.write(`${event.role}: `),
  onTextMessageContentEvent: ({ event }) => void process.stdout.write(event.delta),
  onTextMessageEndEvent: () => console.log(),
  onToolCallResultEvent: ({ event }) => console.log(`tool: ${event.content}`),
  onRunErrorEvent: ({ event }) => console.log(`(${event.code}: ${event.message})`),
}
await agent.connectAgent({}, print)
if (question) {
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content: question })
  await agent.runAgent({}, print)
}
keep()
