// The smallest HTTP/1.1 client that will do: one socket, one request at a time, ready-made request bytes.
// The machine is shared by the server and this generator, so what the generator spends, the server lacks.
import net from "node:net"

const HEAD_END = Buffer.from("\r\n\r\n")
const EMPTY = Buffer.alloc(0)

export class Connection {
  #socket
  #received = EMPTY
  #waiting = null

  static async open(port) {
    const connection = new Connection()
    connection.#socket = net.connect({ port, host: "127.0.0.1", noDelay: true })
    connection.#socket.on("data", (bytes) => connection.#receive(bytes))
    await new Promise((resolve, reject) => connection.#socket.once("connect", resolve).once("error", reject))
    connection.#socket.on("error", (error) => connection.#fail(error))
    connection.#socket.on("close", () => connection.#fail(new Error("the server closed the connection")))
    return connection
  }

  /** Sends a whole request and resolves with `{ status, head, body }`; `head` is the raw header text. */
  send(request) {
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject }
      this.#socket.write(request, "latin1")
    })
  }

  close() {
    this.#waiting = null
    this.#socket.destroy()
  }

  #receive(bytes) {
    this.#received = this.#received.length === 0 ? bytes : Buffer.concat([this.#received, bytes])
    const answer = parseAnswer(this.#received)
    if (answer === null || this.#waiting === null) return
    this.#received = this.#received.subarray(answer.length)
    const { resolve } = this.#waiting
    this.#waiting = null
    resolve(answer)
  }

  #fail(error) {
    const waiting = this.#waiting
    this.#waiting = null
    waiting?.reject(error)
  }
}

/** One whole answer from the start of `bytes`, or null while some of it is still to come. */
function parseAnswer(bytes) {
  const headEnd = bytes.indexOf(HEAD_END)
  if (headEnd < 0) return null
  const head = bytes.latin1Slice(0, headEnd)
  const status = Number(head.slice(9, 12))
  const start = headEnd + 4
  if (status === 204 || status === 304) return { status, head, body: EMPTY, length: start }
  const sized = /\r\ncontent-length: *(\d+)/i.exec(head)
  if (sized) return sizedBody(bytes, start, Number(sized[1]), status, head)
  if (/\r\ntransfer-encoding: *chunked/i.test(head)) return chunkedBody(bytes, start, status, head)
  throw new Error(`an answer of unknown length:\n${head}`)
}

function sizedBody(bytes, start, size, status, head) {
  if (bytes.length < start + size) return null
  return { status, head, body: bytes.subarray(start, start + size), length: start + size }
}

function chunkedBody(bytes, start, status, head) {
  const parts = []
  for (let at = start; ; ) {
    const lineEnd = bytes.indexOf("\r\n", at)
    if (lineEnd < 0) return null
    const size = parseInt(bytes.latin1Slice(at, lineEnd), 16)
    const end = lineEnd + 2 + size
    if (bytes.length < end + 2) return null
    if (size === 0) return { status, head, body: Buffer.concat(parts), length: end + 2 }
    parts.push(bytes.subarray(lineEnd + 2, end))
    at = end + 2
  }
}

export function header(head, name) {
  const found = new RegExp(`\\r\\n${name}: *([^\\r]*)`, "i").exec(head)
  return found ? found[1] : undefined
}

export function request(method, path, headers = {}, body = "") {
  const lines = Object.entries({ host: "127.0.0.1", ...headers }).map(([name, value]) => `${name}: ${value}\r\n`)
  const size = method === "GET" ? "" : `content-length: ${Buffer.byteLength(body, "latin1")}\r\n`
  return `${method} ${path} HTTP/1.1\r\n${lines.join("")}${size}\r\n${body}`
}
