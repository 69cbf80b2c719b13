// One reader of an AG-UI thread, by the pipeline of @ag-ui/client: prints after each event the text and the events so far,
// with the pieces of a text as one; then its messages.
import { HttpAgent } from "@ag-ui/client"
import { TidemarkAgent } from "../../docs/examples/ag-ui/tidemark-agent.mjs"

const { plain, by, runs = [], pauseMs = 0, leaveAfter, stopAfter, ...config } = JSON.parse(process.env.TASK)
const line = (value) => process.stdout.write(JSON.stringify(value) + "\n")

const { fetch } = globalThis
if (by) globalThis.fetch = (url, options) => fetch(String(url).replace(/^http:..[^/]*(?=.v1.)/, by), options)

const agent = new (plain ? HttpAgent : TidemarkAgent)(config).clone()
let pieces = 0
const read = { text: "", events: [], code: undefined }
const seen = {
  async onEvent({ event: { type, delta = "", code } }) {
    read.text += delta
    read.code = code
    if (read.events.at(-1) !== type) read.events.push(type)
    line(read)
    await new Promise((resolve) => setTimeout(resolve, pauseMs))
    if (type !== "TEXT_MESSAGE_CONTENT") return
    pieces += 1
    if (pieces === leaveAfter) agent.detachActiveRun()
    if (pieces === stopAfter) agent.abortRun()
  },
}
let error = ""
try {
  if (runs.length === 0) await agent.connectAgent({}, seen)
  for (const runId of runs) {
    agent.addMessage({ id: `question-${runId}`, role: "user", content: "Why?" })
    await agent.runAgent({ runId }, seen)
  }
} catch (raised) {
  error = String(raised)
}
const messages = agent.messages.map(({ role, content }) => ({ role, content }))
line({ ...read, messages, saved: agent.saved ?? null, error })
