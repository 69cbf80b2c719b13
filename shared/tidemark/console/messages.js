// The messages that a page holds: in the bytes as they came, so that a hundred thousand of them take little more than
// their own size. The oldest are dropped beyond the limits. A message's number never changes.
export const MAX_MESSAGES = 100_000
export const MAX_BYTES = 64 * 1024 * 1024
const CHUNK_MESSAGES = 4096
const HEX_ROW = 16
// A line that grows is one row until it is so long: it is copied each time that something is added.
const MAX_OPEN_LINE = 16 * 1024

const [QUOTE, BACKSLASH, COMMA, OPEN, CLOSE, OPEN_BRACE, CLOSE_BRACE, LINE_FEED] = [34, 92, 44, 91, 93, 123, 125, 10]

// Where each element of a JSON array begins and ends, by bytes: as they were sent, and so with their exact offsets.
export function splitArray(bytes) {
  const ends = []
  let depth = 0
  let inString = false
  let start = 1
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at]
    if (inString) {
      if (byte === BACKSLASH) at++
      else if (byte === QUOTE) inString = false
    } else if (byte === QUOTE) inString = true
    else if (byte === OPEN || byte === OPEN_BRACE) depth++
    else if (byte === CLOSE || byte === CLOSE_BRACE) depth--
    const isEnd = !inString && ((byte === COMMA && depth === 1) || (byte === CLOSE && depth === 0))
    if (!isEnd) continue
    if (at > start) ends.push(start, at)
    start = at + 1
  }
  return Uint32Array.from(ends)
}

function splitLines(bytes) {
  const ends = []
  let start = 0
  while (start < bytes.length) {
    const found = bytes.indexOf(LINE_FEED, start)
    const end = found < 0 ? bytes.length : found + 1
    ends.push(start, end)
    start = end
  }
  return Uint32Array.from(ends)
}

function splitRows(bytes) {
  const ends = []
  for (let start = 0; start < bytes.length; start += HEX_ROW) ends.push(start, Math.min(start + HEX_ROW, bytes.length))
  return Uint32Array.from(ends)
}

const SPLIT = { json: splitArray, text: splitLines, binary: splitRows }
const decoder = new TextDecoder()

export function joined(parts) {
  const bytes = new Uint8Array(parts.reduce((size, part) => size + part.length, 0))
  let at = 0
  for (const part of parts) {
    bytes.set(part, at)
    at += part.length
  }
  return bytes
}

export function kindOf(contentType) {
  const essence = (contentType ?? "").split(";")[0].trim().toLowerCase()
  if (essence === "application/json") return "json"
  return essence.startsWith("text/") || essence === "application/x-ndjson" ? "text" : "binary"
}

export class Messages {
  constructor(kind, { maxMessages = MAX_MESSAGES, maxBytes = MAX_BYTES } = {}) {
    this.kind = kind
    this.limits = { maxMessages, maxBytes }
    this.chunks = []
    this.first = 0
    this.end = 0
    this.begin = NaN
    this.bytes = 0
    this.isLineOpen = false
  }

  // `next` is the offset behind the chunk. A page of JSON is one byte longer than what is stored, "[" before it; its "]" stands
  // in the place of the last comma. So in either kind the byte at `at` has the offset `next - length + at`, unless a
  // compaction took messages out behind `start`: then the server is asked where the others are (`Times`).
  add(added, next, start) {
    if (!this.chunks.length) this.begin = start
    const bytes = this.kind === "text" ? this.continueLine(added) : added
    const ends = SPLIT[this.kind](bytes)
    this.chunks.push(...this.cut(bytes, ends, next, start, this.end))
    this.end += ends.length / 2
    while (this.chunks.length > 1 && (this.end - this.first > this.limits.maxMessages || this.bytes > this.limits.maxBytes)) this.dropFirst()
    return ends.length / 2
  }

  // A page that ends at `begin`, where what is held begins; that is not known of what lies behind dropped messages of a compaction.
  addBefore(page, start) {
    const ends = SPLIT[this.kind](page)
    this.first -= ends.length / 2
    this.chunks.unshift(...this.cut(page, ends, this.begin, start, this.first))
    this.begin = start < this.begin ? start : 0 // Nothing is older.
  }

  hasRoomFor(count) {
    return this.end - this.first + count <= this.limits.maxMessages && this.bytes < this.limits.maxBytes / 2
  }

  dropFirst() {
    this.bytes -= this.chunks.shift().bytes.length
    this.first = this.chunks[0].number
    const { offset, gapped } = this.at(this.first)
    this.begin = gapped ? NaN : offset
  }

  // Forgets what lies before a message, a chunk at a time.
  dropBefore(number) {
    while (this.chunks[1]?.number <= number) this.dropFirst()
  }

  // What follows begins a row of its own, also where it goes on with a line.
  breakLine() {
    this.isLineOpen = false
  }

  // A writer of text may end anywhere, in a line or in a character. What goes on with the last row is put behind its bytes.
  continueLine(added) {
    const last = this.isLineOpen ? this.at(this.end - 1) : null
    this.isLineOpen = added.at(-1) !== LINE_FEED
    if (!last || last.bytes.length + added.length > MAX_OPEN_LINE) return added
    const chunk = this.chunks.at(-1)
    chunk.ends = chunk.ends.subarray(0, -2)
    chunk.bytes = chunk.bytes.subarray(0, chunk.bytes.length - last.bytes.length)
    if (!chunk.ends.length) this.chunks.pop()
    this.end -= 1
    this.bytes -= last.bytes.length
    return joined([last.bytes, added])
  }

  // The messages of a page as chunks, with a copy of their bytes: a page would stay in memory as long as any of its messages.
  cut(page, ends, next, start, number) {
    const gapped = this.kind === "json" && next - start > page.length - 1 ? { first: number, count: ends.length / 2, offset: start, next, ends: null } : null
    const chunks = []
    for (let from = 0; from < ends.length; from += 2 * CHUNK_MESSAGES) {
      const some = ends.subarray(from, from + 2 * CHUNK_MESSAGES)
      const bytes = page.slice(some[0], some.at(-1))
      chunks.push({ bytes, ends: some.map((at) => at - some[0]), base: next - page.length + some[0], number: number + from / 2, gapped })
      this.bytes += bytes.length
    }
    return chunks
  }

  // The end of the text that is held before the row `end`, at most `limit` bytes of it.
  tailText(end, limit) {
    let first = end
    for (let size = 0; first > this.first && size < limit; first--) size += this.at(first - 1).bytes.length
    const rows = []
    for (let each = first; each < end; each++) rows.push(this.at(each).bytes)
    return decoder.decode(joined(rows).subarray(-limit))
  }

  // All that is held, as a file: JSON with a message on each line.
  all() {
    const parts = []
    for (let each = this.first; each < this.end; each++) parts.push(this.at(each).bytes, ...(this.kind === "json" ? [Uint8Array.of(LINE_FEED)] : []))
    return joined(parts)
  }

  // A message, where it begins, and where the next one does. Of one that is `gapped`, that is not known yet: then these
  // are of the chunk that it is in.
  at(number) {
    let [low, high] = [0, this.chunks.length - 1]
    while (low < high) {
      const middle = (low + high + 1) >> 1
      if (this.chunks[middle].number <= number) low = middle
      else high = middle - 1
    }
    const chunk = this.chunks[low]
    if (!chunk || number < chunk.number || number >= this.end) return null
    const index = 2 * (number - chunk.number)
    const [start, end] = [chunk.ends[index], chunk.ends[index + 1]]
    const width = end - start + (this.kind === "json" ? 1 : 0)
    const { gapped } = chunk
    const bytes = chunk.bytes.subarray(start, end)
    if (gapped && !gapped.ends) return { number, offset: gapped.offset, next: gapped.next, bytes, gapped }
    const next = gapped ? gapped.ends[number - gapped.first] : chunk.base + start + width
    return { number, offset: next - width, next, bytes, gapped: null }
  }

  text(number, limit = Infinity) {
    const message = this.at(number)
    if (!message) return ""
    return this.kind === "binary" ? hexdump(message.bytes) : decoder.decode(message.bytes.subarray(0, limit))
  }
}

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join(" ")

// A row of bytes, and what of it is ASCII.
function hexdump(row) {
  const ascii = Array.from(row, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("")
  return `${hex(row).padEnd(3 * HEX_ROW - 1)}  ${ascii}`
}

// Bytes as people know them from `hexdump -C`: with their place, and what of them is ASCII.
export function dump(bytes) {
  const rows = []
  for (let start = 0; start < bytes.length; start += HEX_ROW) rows.push(`${start.toString(16).padStart(6, "0")}  ${hexdump(bytes.subarray(start, start + HEX_ROW))}`)
  return rows.join("\n")
}

export const renderOffset = (position) => String(position).padStart(16, "0")
