// Node's own fetch (undici) keeps a connection: a request after a pause goes through, as long as the server keeps it, too.
import assert from "node:assert/strict"

const url = `${process.env.BASE_URL}/v1/stream/idle-${crypto.randomUUID()}`
const put = await fetch(url, { method: "PUT", headers: { "Content-Type": "text/plain" } })
assert.equal(put.headers.get("keep-alive"), `timeout=${process.env.KEEP_ALIVE}`)
for (let turn = 0; turn < 4; turn++) {
  await new Promise((resolve) => setTimeout(resolve, Number(process.env.PAUSE_SECONDS) * 1000))
  const posted = await fetch(url, { method: "POST", headers: { "Content-Type": "text/plain" }, body: "high" })
  assert.equal(posted.status, 204)
}
process.exit(0)
