// The official npm client where it is turned away for a while: what comes back by itself, and what has to be helped.
// Environment: BASE_URL, WHAT. Says as JSON what came of it.
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"
import { patient } from "../../../docs/examples/patient-producer.mjs"

const url = `${process.env.BASE_URL}/v1/stream/${process.env.STREAM}`
const open = () => new DurableStream({ url, contentType: "application/json" })

async function produce(options) {
  const errors = []
  const producer = new IdempotentProducer(open(), "backoff-check", {
    ...options,
    lingerMs: 1,
    onError: (error) => errors.push(error.status ?? error.name),
  })
  producer.append(JSON.stringify({ n: 1 }))
  await producer.flush().catch(() => {})
  await producer.detach().catch(() => {})
  return errors
}

const ACTIONS = {
  create: () => DurableStream.create({ url, contentType: "application/json" }).then(() => []),
  append: () => open().append(JSON.stringify({ n: 1 })).then(() => []),
  read: () => stream({ url, live: false }).then((response) => response.json()),
  "long-poll": async () => {
    const response = await stream({ url, offset: "-1", live: "long-poll" })
    return await new Promise((resolve) => response.subscribeJson((batch) => batch.items.length && resolve(batch.items)))
  },
  producer: () => produce({}),
  "patient producer": () => produce({ fetch: patient() }),
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
