// The protocol's Node reference server with its file store, on loopback.
// Environment: PORT, DATA_DIR, LONG_POLL_SECONDS.
import { mkdirSync } from "node:fs"
import { DurableStreamTestServer } from "@durable-streams/server"

const { PORT, DATA_DIR, LONG_POLL_SECONDS = "25" } = process.env
mkdirSync(DATA_DIR, { recursive: true })

const server = new DurableStreamTestServer({
  host: "127.0.0.1",
  port: Number(PORT),
  dataDir: DATA_DIR,
  longPollTimeout: Number(LONG_POLL_SECONDS) * 1000,
  webhooks: true,
})

async function end() {
  // A client that keeps its connection open would hold the server up for good.
  setTimeout(() => process.exit(0), 1000).unref()
  await server.stop()
  process.exit(0)
}

process.once("SIGTERM", end)
process.once("SIGINT", end)
await server.start()
