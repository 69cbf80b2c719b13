// An idempotent producer that waits where the server has no room for it.
//
// The npm client sends every request of a stream again that is answered 429 or 5xx, but not those of an
// IdempotentProducer: what it could not send is lost to it. Its `fetch` option makes up for that. A producer's
// append may be sent as often as need be: it lands once.
//
//     BASE_URL=http://127.0.0.1:4437 node docs/examples/patient-producer.mjs
import { pathToFileURL } from "node:url"
import { DurableStream, IdempotentProducer } from "@durable-streams/client"

const LONGEST_MS = 30_000

/** `fetch` that comes again, for as long as it takes, where it is told to (429) or where nothing is known (5xx). */
export function patient(fetchOnce = fetch) {
  return async (url, options) => {
    for (let tries = 0; ; tries += 1) {
      const answer = await fetchOnce(url, options).catch((error) => {
        if (options?.signal?.aborted) throw error
        return null
      })
      if (answer && answer.status !== 429 && answer.status < 500) return answer
      await answer?.arrayBuffer()
      const asked = Number(answer?.headers.get("retry-after") ?? 0) * 1000
      const own = Math.random() * Math.min(100 * 1.5 ** tries, LONGEST_MS)
      await new Promise((resolve) => setTimeout(resolve, Math.max(asked, own)))
    }
  }
}

async function main() {
  const url = `${process.env.BASE_URL}/v1/stream/patient-${Date.now()}`
  const handle = await DurableStream.create({ url, contentType: "application/json" })
  const producer = new IdempotentProducer(handle, "patient", { fetch: patient(), onError: console.error })
  for (let n = 0; n < 10; n += 1) producer.append(JSON.stringify({ n }))
  await producer.flush()
  await producer.detach()
  console.log(`ten messages in ${url}`)
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) await main()
