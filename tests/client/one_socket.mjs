// Behind the block of the guide and `url`: a table and a reader are open, then comes a row, then the end of the stream.
import { createStateSchema } from "@durable-streams/state"
import { DurableStream } from "@durable-streams/client"

let sockets = 0
globalThis.WebSocket = class extends WebSocket {
  constructor(url) {
    super(url)
    sockets += 1
  }
}
const anything = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } }
const state = createStateSchema({ tasks: { schema: anything, type: "task", primaryKey: "id" } })
const writer = await DurableStream.create({ url, contentType: "application/json" })
const table = openTable(url, state)
await table.preload()
const row = () => table.collections.tasks.get("1")
const got = []
const response = await follow(url)
const end = new Promise((resolve) => response.subscribeJson((batch) => {
  got.push(...batch.items)
  if (batch.streamClosed) resolve()
}))
await writer.append(JSON.stringify(state.tasks.insert({ value: { id: "1", title: "Tides" } })))
while (!row()) await new Promise((resolve) => setTimeout(resolve, 20))
await writer.close()
await end
console.log(JSON.stringify([row().title, got.length, sockets]))
process.exit(0)
