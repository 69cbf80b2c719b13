import { useChat } from "@ai-sdk/react"
import { createDurableChatTransport } from "@durable-streams/aisdk-transport"
import { stream } from "@durable-streams/client"
import { useEffect, useLayoutEffect, useRef, useState } from "react"
import { createRoot } from "react-dom/client"
import { fold } from "./history.mjs"

const PAGE = 20
const ENDS = { stopped: "Stopped.", cut: "Cut off: the server ended.", failed: "Cut off: the model failed." }
const id = (location.hash ||= `#${crypto.randomUUID()}`).slice(1)
let reading = null // The stream of the answer that this tab asked for or resumed.
const transport = createDurableChatTransport({
  api: "/api/chat",
  fetchClient: async (...request) => {
    const response = await fetch(...request)
    reading = response.headers.get("Location") ?? reading
    return response
  },
})

/** Whether this tab reads the answer already, from Tidemark or through the chat's server. */
const isReading = (answer) => reading !== null && new URL(reading, answer).pathname.endsWith(new URL(answer).pathname)

/** Read up to 20 entries before an offset. */
async function readBack(url, { before, cursor }) {
  const page = await fetch(`${url}?offset=${before}&last=${PAGE}${cursor ? `&cursor=${cursor}` : ""}`)
  if (!page.ok) throw new Error(await page.text())
  const [start, next] = ["Stream-Start-Offset", "Stream-Next-Offset"].map((name) => page.headers.get(name))
  const entries = await page.json()
  return { ...fold(entries), before: start, cursor: page.headers.get("Stream-Cursor"), next, more: entries.length === PAGE }
}

/** A chat from the page `first` on. Calls `lost` when a connection is cut: the page then begins again, as after a reload. */
function Chat({ url, first, lost }) {
  const { messages, setMessages, sendMessage, regenerate, resumeStream, status, error } = useChat({
    id, transport, messages: first.messages, resume: first.answer !== null,
  })
  const isBusy = status === "submitted" || status === "streaming"
  const [news, setNews] = useState([])

  // What other tabs and devices ask, and each answer that has ended.
  useEffect(() => {
    const stop = new AbortController()
    stream({ url, offset: first.next, live: "sse", json: true, signal: stop.signal })
      .then((followed) => {
        followed.subscribeJson(({ items }) => setNews((before) => [...before, ...items]))
        return followed.closed
      })
      .catch(() => stop.signal.aborted || lost())
    return () => stop.abort()
  }, [])
  useEffect(() => {
    if (error instanceof TypeError) lost()
  }, [error])
  useEffect(() => {
    if (isBusy || news.length === 0) return
    const entries = news.filter((entry) => !entry.answer || !isReading(entry.answer))
    setNews([])
    setMessages((shown) => fold([...shown.map((message) => ({ message })), ...entries]).messages)
    if (fold(entries).answer) resumeStream()
  }, [isBusy, news])

  const older = useRef(first)
  const box = useRef()
  const height = useRef(null) // Before older messages were put in front.
  async function scrolled() {
    if (box.current.scrollTop > 0 || !older.current.more || height.current !== null) return
    height.current = box.current.scrollHeight
    older.current = await readBack(url, older.current)
    setMessages((shown) => {
      const known = new Set(shown.map((message) => message.id))
      return [...older.current.messages.filter((message) => !known.has(message.id)), ...shown]
    })
  }
  useLayoutEffect(() => {
    const to = box.current.scrollHeight
    box.current.scrollTop = height.current === null ? to : to - height.current
    height.current = null
  }, [messages])

  const isCut = !isBusy && messages.at(-1)?.metadata?.end
  return (
    <>
      <div id="messages" ref={box} onScroll={scrolled}>
        {messages.map((message) => <Message key={message.id} {...message} />)}
        {error && !(error instanceof TypeError) && <small role="alert">{error.message}</small>}
      </div>
      <form onSubmit={(event) => {
        event.preventDefault()
        sendMessage({ text: new FormData(event.currentTarget).get("text") })
        event.currentTarget.reset()
      }}>
        <input name="text" aria-label="Your question" autoFocus required disabled={isBusy} />
        {isCut && <button type="button" onClick={() => regenerate()}>Try again</button>}
        {isBusy
          ? <button type="button" onClick={() => fetch(`/api/chat/${id}/stop`, { method: "POST" })}>Stop</button>
          : <button>Send</button>}
      </form>
    </>
  )
}

function Message({ id, role, parts, metadata }) {
  return (
    <article id={id} className={role}>
      {parts.map((part, index) => {
        if (part.type === "text") return <span key={index} className="text">{part.text}</span>
        if (part.type.startsWith("tool-")) {
          return <small key={index} className="tool">{part.type.slice(5)}: {JSON.stringify(part.output ?? part.input)}{"\n"}</small>
        }
      })}
      {metadata?.end && <small className="end"> {ENDS[metadata.end]}</small>}
    </article>
  )
}

function App() {
  const [loaded, setLoaded] = useState(null)
  const isLoading = useRef(false)
  async function load() {
    if (isLoading.current) return
    isLoading.current = true
    for (let first = null; first === null; ) {
      try {
        const { url } = await (await fetch(`/api/chat/${id}`)).json()
        first = await readBack(url, { before: "now" })
        setLoaded({ url, first, key: Date.now() })
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 1000))
      }
    }
    isLoading.current = false
  }
  useEffect(() => void load(), [])
  return loaded && <Chat {...loaded} key={loaded.key} lost={load} />
}

addEventListener("hashchange", () => location.reload())
createRoot(document.getElementById("root")).render(<App />)
