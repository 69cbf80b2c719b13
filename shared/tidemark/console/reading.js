// The messages of a stream as a page reads them, and those of them that a filter means.
import { useEffect, useMemo, useRef, useState } from "./preact-hooks.js"
import { send, token } from "./api.js"
import { Messages, renderOffset } from "./messages.js"
import { Rate } from "./pace.js"
import { matcher } from "./search.js"
import { Tail } from "./tail.js"

const OLDER = 1000
// Whether the server refuses what was read as that of another stream, or of a newer state of this one.
export const isOfAnother = (error) => error?.status === 410 && /created again|put back/.test(error.message)
const CONNECTING = { of: null, name: "connecting", error: null }

// The messages of a stream from `start` on, while the page is open. With another `round` or token they are read anew.
export function useTail(path, start, kind, round) {
  const [version, setVersion] = useState(0)
  const [told, setTold] = useState(CONNECTING)
  const held = useMemo(() => ({ messages: kind && new Messages(kind), rate: new Rate(), asked: false }), [path, start, kind, round, token.value])
  // What the reader before told says nothing of this one.
  const state = told.of === held ? told : CONNECTING

  useEffect(() => {
    if (!kind || start === null) return undefined
    const show = () => {
      held.asked = false
      setVersion((old) => old + 1)
    }
    const tail = new Tail(path, start, {
      onChunk(chunk, next, start, isNew) {
        const count = held.messages.add(chunk, next, start)
        if (isNew) held.rate.add(kind === "json" ? count : chunk.length)
        // Once a frame; a page in the background has none, and shows all when it is seen again.
        if (!held.asked) held.asked = requestAnimationFrame(show)
      },
      onState: (name, error = null) => setTold((old) => (old.of === held && old.name === name && !error ? old : { of: held, name, error })),
    })
    held.tail = tail
    tail.run()
    return () => tail.stop()
  }, [held])

  // Loads the messages before those that are held, a page of them at a time.
  const loadOlder = async () => {
    if (held.isLoading) return
    held.isLoading = true
    try {
      const response = await send({ path: `${path}?offset=${held.tail.place(renderOffset(held.messages.begin))}&last=${OLDER}` })
      held.messages.addBefore(new Uint8Array(await response.arrayBuffer()), Number(response.headers.get("Stream-Start-Offset")))
      setVersion((old) => old + 1)
    } catch (error) {
      // It is asked for again. Where it is gone, the reader of the tail says why, if it still reads.
      if (isOfAnother(error)) setTold({ of: held, name: "stopped", error })
    }
    held.isLoading = false
  }

  return { ...held, version, state, loadOlder: held.messages?.hasRoomFor(OLDER) ? loadOlder : null }
}

// Numbers of the messages that the filter means, looked for only among those that are new since the last time, and in the
// last one before, which may have grown.
export function useFilter(messages, filter, version) {
  const found = useRef({ messages: null, filter: "", numbers: [], first: 0, seen: 0 })
  if (!filter || !messages) return null
  const state = found.current
  if (state.messages !== messages || state.filter !== filter || messages.first < state.first) Object.assign(state, { messages, filter, numbers: [], seen: messages.first })
  state.first = messages.first
  const isMeant = matcher(filter, messages.kind)
  for (let each = Math.max(state.seen, messages.first); each < messages.end; each++) if (state.numbers.at(-1) !== each && isMeant(messages.text(each))) state.numbers.push(each)
  state.seen = messages.end - 1
  while (state.numbers.length && state.numbers[0] < messages.first) state.numbers.shift()
  return state.numbers
}
