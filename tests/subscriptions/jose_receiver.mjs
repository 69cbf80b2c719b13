// A webhook that finds the key of each signature with npm `jose`, prints what it found, and answers {"done": true}.
//
// A signature of §7.1 is no JWS: jose fetches the set of keys, chooses by `kid`, and reads the key; WebCrypto verifies.
import { createServer } from "node:http"
import { createRemoteJWKSet } from "jose"

// cooldownDuration: a set is fetched again at once where it lacks a key, and not half a minute later.
const keys = createRemoteJWKSet(new URL(`${process.env.SERVER}/v1/stream/__ds/jwks.json`), { cooldownDuration: 0 })

async function verify(header, body) {
  const { t, kid, ed25519 } = Object.fromEntries(header.split(",").map((part) => part.split(/=(.*)/s).slice(0, 2)))
  const key = await keys({ alg: "EdDSA", kid })
  const signed = Buffer.concat([Buffer.from(`${t}.`), body])
  return crypto.subtle.verify("Ed25519", key, Buffer.from(ed25519, "base64url"), signed)
}

createServer(async (request, response) => {
  const chunks = []
  for await (const chunk of request) chunks.push(chunk)
  const body = Buffer.concat(chunks)
  const header = request.headers["webhook-signature"]
  const [, kid] = header.match(/kid=([^,]+)/)
  console.log(JSON.stringify({
    kid,
    type: request.headers["content-type"],
    asSent: await verify(header, body),
    otherBody: await verify(header, Buffer.concat([body, Buffer.from(" ")])),
    otherTime: await verify(header.replace(/t=\d/, "t=9"), body),
    otherKey: await verify(header.replace(kid, "ds_unknown"), body).catch((error) => error.code),
    streams: JSON.parse(body).streams.map((each) => each.path),
  }))
  response.writeHead(200, { "content-type": "application/json" }).end('{"done":true}')
}).listen(Number(process.env.PORT), "127.0.0.1", () => console.log("ready"))
