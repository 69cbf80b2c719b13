// @durable-streams/y-durable-streams: two editors of one document meet, the package's server compacts it, a third opens it.
import assert from "node:assert/strict"
import { YjsProvider } from "@durable-streams/y-durable-streams"
import { YjsServer } from "@durable-streams/y-durable-streams/server"
import * as Y from "yjs"
import { Awareness } from "y-protocols/awareness"

const server = new YjsServer({ port: 0, dsServerUrl: process.env.BASE_URL, compactionThreshold: 2000 })
await server.start()
const baseUrl = `${server.url}/v1/yjs/service-${crypto.randomUUID()}`
const until = async (what) => {
  while (!what()) await new Promise((resolve) => setTimeout(resolve, 20))
}

async function open() {
  const doc = new Y.Doc()
  const awareness = new Awareness(doc)
  const provider = new YjsProvider({ doc, baseUrl, docId: "notes", awareness })
  provider.on("error", (error) => console.error(error))
  await until(() => provider.synced)
  return { doc, provider, awareness, text: doc.getText("text") }
}

const [ada, grace] = [await open(), await open()]
ada.text.insert(0, "high tide")
await until(() => grace.text.toString() === "high tide")
grace.text.insert(9, ", low tide")
await until(() => ada.text.toString() === "high tide, low tide")

ada.awareness.setLocalState({ name: "Ada" })
await until(() => [...grace.awareness.getStates().values()].some((state) => state.name === "Ada"))

for (let line = 0; line < 60; line++) ada.text.insert(0, `${line}: ${"x".repeat(80)}\n`)
await until(() => grace.text.toString() === ada.text.toString())
const snapshot = async () => (await fetch(`${baseUrl}/docs/notes?offset=snapshot`, { redirect: "manual" })).headers.get("location")
let location = ""
while (!/_snapshot/.test(location)) {
  location = (await snapshot()) ?? ""
  await new Promise((resolve) => setTimeout(resolve, 100))
}
const late = await open()
assert.equal(late.text.toString(), ada.text.toString())
process.exit(0)
