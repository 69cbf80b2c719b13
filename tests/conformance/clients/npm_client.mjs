// The official npm client against a running server: create, append, idempotent producer, read, live tails, close.
// Environment: BASE_URL. Ends with 0 when every check held, and with the failed check on stderr when not.
import assert from "node:assert/strict"
import { randomUUID } from "node:crypto"
import { setTimeout as pause } from "node:timers/promises"
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"

const LIMIT_MS = 90_000
const limit = setTimeout(() => fail(new Error(`not done after ${LIMIT_MS} ms`)), LIMIT_MS)

function fail(error) {
  console.error(error)
  process.exit(1)
}

async function readAll(url) {
  const response = await stream({ url, live: false })
  return response.json()
}

/**
 * Follows the stream from `offset` in one live mode; `ended` resolves with all items once the end has been seen. Without
 * an end, as when the client gives up in silence, it rejects: by then a client that goes on has long seen it.
 */
async function tail(url, offset, live) {
  const items = []
  const response = await stream({ url, offset, live })
  const ended = new Promise((resolve, reject) => {
    response.subscribeJson((batch) => {
      items.push(...batch.items)
      if (batch.streamClosed) resolve(items)
    })
    response.closed.then(() => pause(10_000)).then(() => reject(new Error(`${live} ended after ${items.length} items`)), reject)
  })
  ended.catch(() => {}) // Looked at when everything has been written.
  return { items, ended }
}

async function appendOneByOne(handle, messages, pauseMs = 0) {
  for (const message of messages) {
    await handle.append(JSON.stringify(message))
    await pause(pauseMs)
  }
}

async function produce(handle, messages, epoch = 0) {
  const errors = []
  const producer = new IdempotentProducer(handle, "client-check", { epoch, lingerMs: 1, onError: (error) => errors.push(error) })
  for (const message of messages) {
    producer.append(JSON.stringify(message))
    await producer.flush()
  }
  await producer.detach()
  assert.deepEqual(errors, [])
}

async function main() {
  const url = `${process.env.BASE_URL}/v1/stream/npm-client-${randomUUID()}`
  const handle = await DurableStream.create({ url, contentType: "application/json" })

  const appended = [{ n: 1 }, { n: 2, text: "ünïcode ☃" }, { n: 3 }]
  await appendOneByOne(handle, appended)
  const produced = Array.from({ length: 10 }, (_, n) => ({ produced: n }))
  await produce(handle, produced)
  assert.deepEqual(await readAll(url), [...appended, ...produced], "catch-up read")

  // The same producer again from its first number, as after a crash: every append is a duplicate.
  await produce(handle, produced)
  assert.deepEqual(await readAll(url), [...appended, ...produced], "a producer's repeats are not appended again")

  // A producer that starts anew goes on in an epoch that grows with each start, and shuts out the one before.
  const restarted = [{ restarted: 0 }, { restarted: 1 }]
  await produce(handle, restarted, Date.now())
  assert.deepEqual(await readAll(url), [...appended, ...produced, ...restarted], "a new epoch's messages are appended")
  await assert.rejects(produce(handle, [{ stale: true }]), "the epoch before is shut out")

  const { offset } = await handle.head()
  const tails = await Promise.all([tail(url, offset, "sse"), tail(url, offset, "long-poll")])
  // A trickle: where events are handed on only once an answer is complete, each would be one of its own.
  const later = Array.from({ length: 15 }, (_, n) => ({ later: n }))
  await appendOneByOne(handle, later, 100)
  const last = { last: true }
  await handle.close({ body: JSON.stringify(last) })
  for (const [index, mode] of ["sse", "long-poll"].entries()) {
    assert.deepEqual(await tails[index].ended, [...later, last], `${mode} tail`)
  }
  assert.equal((await handle.head()).streamClosed, true, "HEAD tells the end")
  await assert.rejects(handle.append(JSON.stringify({ late: true })), "no append after the end")
}

main().then(() => {
  clearTimeout(limit)
  console.log("npm client: every check held")
  process.exit(0)
}, fail)
