// A webhook that verifies its signature, processes what is new, and answers {"done": true}.
//
//     SERVER=http://127.0.0.1:4437 PORT=8080 node docs/examples/webhook-worker.ts
//
// Node 22.18 or later runs TypeScript as it is; before that, rename it to .mjs: it has no types that Node must know.
import { createPublicKey, verify } from "node:crypto"
import { createServer } from "node:http"

const server = process.env.SERVER ?? "http://127.0.0.1:4437"
const headers = process.env.TIDEMARK_TOKEN ? { authorization: `Bearer ${process.env.TIDEMARK_TOKEN}` } : {}

createServer(async (request, response) => {
  const chunks = []
  for await (const chunk of request) chunks.push(chunk)
  const body = Buffer.concat(chunks)
  if (!(await isSigned(body, String(request.headers["webhook-signature"] ?? "")))) {
    response.writeHead(401).end()
    return
  }
  const wake = JSON.parse(body.toString())
  for (const stream of wake.streams) await processStream(stream)
  // Exactly what this wake named is acked. What came meanwhile is the next wake.
  response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify({ done: true }))
}).listen(Number(process.env.PORT ?? 8080), "127.0.0.1", () => console.log("ready"))

async function isSigned(body, header) {
  const match = header.match(/^t=(\d+),kid=([^,]+),ed25519=([A-Za-z0-9_-]+)$/)
  if (!match || Math.abs(Date.now() / 1000 - Number(match[1])) > 300) return false
  const keys = await (await fetch(`${server}/v1/stream/__ds/jwks.json`)).json()
  const key = keys.keys.find((each) => each.kid === match[2])
  if (!key) return false
  const signed = Buffer.concat([Buffer.from(`${match[1]}.`), body])
  return verify(null, signed, createPublicKey({ key, format: "jwk" }), Buffer.from(match[3], "base64url"))
}

async function processStream(stream) {
  let offset = stream.acked_offset
  while (offset < stream.tail_offset) {
    const page = await fetch(`${server}/v1/stream/${stream.path}?offset=${offset}`, { headers })
    for (const message of await page.json()) console.log(JSON.stringify({ stream: stream.path, message }))
    offset = page.headers.get("stream-next-offset")
  }
}
