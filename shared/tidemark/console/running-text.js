// The end of a text stream as one text that grows: what a model writes, word by word. It stays at the end until the reader
// scrolls up.
import { useLayoutEffect, useRef } from "./preact-hooks.js"
import { html } from "./html.js"

const NEAR_PX = 30

export function RunningText({ text }) {
  const box = useRef(null)
  const isAtEnd = useRef(true)
  useLayoutEffect(() => {
    if (isAtEnd.current) box.current.scrollTop = box.current.scrollHeight
  }, [text])
  const onScroll = ({ currentTarget: { scrollTop, clientHeight, scrollHeight } }) => (isAtEnd.current = scrollTop + clientHeight >= scrollHeight - NEAR_PX)
  return html`<pre class="list running" ref=${box} tabindex="0" aria-label="The text" onScroll=${onScroll}>${text}</pre>`
}
