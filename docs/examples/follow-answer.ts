// A page that keeps the text and the offset of an answer: after a reload it shows the text and reads on from there.
// It begins again where the answer was written anew under its name, and waits for one that is not there yet.
import { stream } from "@durable-streams/client"

const url = "http://127.0.0.1:4437/v1/stream/answer-42"
let saved = JSON.parse(localStorage.getItem("answer-42") ?? "{}")
document.body.textContent = saved.text ?? ""

async function follow() {
  const head = await fetch(url, { method: "HEAD" })
  if (!head.ok) throw new Error(`HTTP ${head.status}`)
  const written = head.headers.get("ETag")?.split(":")[0] // another one for each stream that had this name
  if (saved.written !== written) saved = { written, text: "", offset: "-1" }
  const response = await stream({ url, offset: saved.offset, live: "sse" })
  response.subscribeText((chunk) => {
    saved.text += chunk.text
    saved.offset = chunk.offset
    localStorage.setItem("answer-42", JSON.stringify(saved))
    document.body.textContent = saved.text
  })
  await response.closed
}

function keepFollowing() {
  follow().catch(() => setTimeout(keepFollowing, 1000))
}
keepFollowing()
