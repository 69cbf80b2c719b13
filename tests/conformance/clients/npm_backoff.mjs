// The official npm client where it is turned away for a while: it comes back by itself.
// Environment: BASE_URL, WHAT. Says as JSON what came of it.
import { DurableStream, stream } from "@durable-streams/client"

const url = `${process.env.BASE_URL}/v1/stream/${process.env.STREAM}`
const open = () => new DurableStream({ url, contentType: "application/json" })

const ACTIONS = {
  create: () => DurableStream.create({ url, contentType: "application/json" }).then(() => []),
  append: () => open().append(JSON.stringify({ n: 1 })).then(() => []),
  read: () => stream({ url, live: false }).then((response) => response.json()),
  "long-poll": async () => {
    const response = await stream({ url, offset: "-1", live: "long-poll" })
    return await new Promise((resolve) => response.subscribeJson((batch) => batch.items.length && resolve(batch.items)))
  },
}

ACTIONS[process.env.WHAT]().then(
  (result) => {
    console.log(JSON.stringify({ result }))
    process.exit(0)
  },
  (error) => {
    console.log(JSON.stringify({ failed: error.status ?? String(error) }))
    process.exit(0)
  },
)
