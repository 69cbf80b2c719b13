// The front page: a stream of this very server with two readers, and how to begin, with this server's own address.
import { after, choose, chosenColours, symbolOf, titleOf } from "./colours.js"

const root = new URL("../../", import.meta.url).href // A proxy may serve this server below a path of its own.
const $ = (id) => document.getElementById(id)
const showColours = () => {
  const button = $("colours")
  button.textContent = symbolOf(chosenColours())
  button.ariaLabel = button.title = titleOf(chosenColours())
}
$("colours").onclick = () => {
  choose(after(chosenColours()))
  showColours()
}
showColours()
const said = (text) => ($("said").textContent = text)

const stream = `${root}v1/stream/front-page/${crypto.randomUUID?.() ?? Math.random().toString(36).slice(2)}`
const offsets = { 1: "-1", 2: "-1" }

// A reader goes on behind the last event it has seen: the browser by itself, and this page after a cut.
function follow(reader) {
  const shown = $(`shown-${reader}`)
  const events = new EventSource(`${stream}?live=sse&offset=${offsets[reader]}`)
  events.addEventListener("data", (event) => {
    offsets[reader] = event.lastEventId
    shown.append(event.data)
    shown.scrollTop = shown.scrollHeight
  })
  events.addEventListener("control", (event) => (offsets[reader] = event.lastEventId))
  return events
}

async function refusal(answer) {
  if (answer.status === 401 || answer.status === 403) return "This server asks for a token: try it in the console."
  return answer.json().then((told) => told.error, () => `The server answered ${answer.status}.`)
}

let begun
// The stream ends by itself, ten minutes after its last reader.
async function begin() {
  const answer = await fetch(stream, { method: "PUT", headers: { "Content-Type": "text/plain", "Stream-TTL": "600" } })
  if (!answer.ok) throw new Error(await refusal(answer))
  follow(1)
  return { second: follow(2) }
}

$("write").onsubmit = async (event) => {
  event.preventDefault()
  try {
    begun ??= begin()
    await begun
    const body = $("line").value + "\n"
    const answer = await fetch(stream, { method: "POST", headers: { "Content-Type": "text/plain" }, body })
    if (!answer.ok) throw new Error(await refusal(answer))
    said(`Appended: the stream is ${Number(answer.headers.get("Stream-Next-Offset"))} bytes long.`)
    $("line").select()
  } catch (failure) {
    begun = undefined
    said(failure instanceof TypeError ? "The server does not answer." : failure.message)
  }
}

$("cut").onclick = async () => {
  if (!begun) return said("Append a line first.")
  const readers = await begun
  if (readers.second) {
    readers.second.close()
    readers.second = null
    $("cut").textContent = "Connect it again"
    said("Reader 2 is gone. Append more, and connect it again.")
  } else {
    readers.second = follow(2)
    $("cut").textContent = "Cut its connection"
    said(`Reader 2 goes on from offset ${offsets[2]}: nothing is missing, nothing is there twice.`)
  }
}

const examples = {
  curl: `URL=${root}v1/stream/first
curl -X PUT -H 'Content-Type: text/plain' "$URL"
curl -H 'Content-Type: text/plain' -d 'hello ' "$URL"
curl -N "$URL?offset=-1&live=sse"`,
  TypeScript: `// npm install @durable-streams/client
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"

const url = "${root}v1/stream/first"
const first = await DurableStream.create({ url, contentType: "text/plain" })
const producer = new IdempotentProducer(first, "writer-1")
producer.append("hello ")
await producer.close()
const answer = await stream({ url, offset: "-1", live: "sse" })
answer.subscribeText((chunk) => console.log(chunk.text))`,
  Python: `from tidemark import Stream

stream = Stream.create("${root}v1/stream/first", content_type="text/plain")
with stream.producer("writer-1") as producer:
    producer.append("hello ")
for chunk in stream.follow():
    print(chunk.text)`,
}

function show(language) {
  $("code").textContent = examples[language]
  for (const button of $("languages").children) button.setAttribute("aria-pressed", button.textContent === language)
}

for (const language of Object.keys(examples)) {
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: language })
  button.onclick = () => show(language)
  $("languages").append(button)
}
show("curl")

$("copy").onclick = async () => {
  try {
    await navigator.clipboard.writeText($("code").textContent)
    $("copy").textContent = "Copied"
  } catch {
    getSelection().selectAllChildren($("code"))
    $("copy").textContent = "Selected"
  }
  setTimeout(() => ($("copy").textContent = "Copy"), 2000)
}
