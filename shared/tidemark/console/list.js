// A list of any length of which only the rows in sight exist.
import { useEffect, useLayoutEffect, useRef, useState } from "./preact-hooks.js"
import { html } from "./html.js"

export const ROW_HEIGHT = 28
const SPARE_ROWS = 8

// `first` and `count` say which numbers there are. `follow` keeps the end in sight until the reader scrolls up.
export function VirtualList({ label, first, count, selected, onSelect, onOpen, renderRow, follow, onFollow, onTop }) {
  const box = useRef(null)
  const [view, setView] = useState({ top: 0, height: 600 })
  const lastFirst = useRef(first)

  useEffect(() => {
    const observer = new ResizeObserver(() => setView((old) => ({ ...old, height: box.current.clientHeight })))
    observer.observe(box.current)
    return () => observer.disconnect()
  }, [])

  useLayoutEffect(() => {
    const dropped = first - lastFirst.current
    lastFirst.current = first
    if (follow) box.current.scrollTop = count * ROW_HEIGHT
    else if (dropped) box.current.scrollTop -= dropped * ROW_HEIGHT
  }, [first, count, follow])

  useLayoutEffect(() => {
    if (selected === null || follow) return
    const top = (selected - first) * ROW_HEIGHT
    const { scrollTop, clientHeight } = box.current
    if (top < scrollTop) box.current.scrollTop = top
    else if (top + ROW_HEIGHT > scrollTop + clientHeight) box.current.scrollTop = top + ROW_HEIGHT - clientHeight
  }, [selected])

  function onScroll() {
    const { scrollTop, clientHeight, scrollHeight } = box.current
    setView({ top: scrollTop, height: clientHeight })
    // A list that has just become empty scrolls by itself.
    if (count) onFollow?.(scrollTop + clientHeight >= scrollHeight - ROW_HEIGHT)
    if (count && !scrollTop) onTop?.()
  }

  function onKeyDown(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key]
    const target = step ? (selected ?? first - 1) + step : { Home: first, End: first + count - 1 }[event.key]
    if (event.key === "Enter" && selected !== null) onOpen?.(selected)
    if (target === undefined || !count) return
    event.preventDefault()
    const bound = (row) => Math.max(first, Math.min(first + count - 1, row))
    onSelect(step ? (old) => bound((old ?? first - 1) + step) : bound(target))
  }

  const from = Math.max(0, Math.floor(view.top / ROW_HEIGHT) - SPARE_ROWS)
  const to = Math.min(count, Math.ceil((view.top + view.height) / ROW_HEIGHT) + SPARE_ROWS)
  const rows = []
  for (let index = from; index < to; index++) rows.push(first + index)
  const isInSight = selected !== null && rows.includes(selected)
  return html`<div
    class="list"
    ref=${box}
    role="listbox"
    tabindex="0"
    aria-label=${label}
    aria-activedescendant=${isInSight ? `row-${selected}` : null}
    onScroll=${onScroll}
    onKeyDown=${onKeyDown}
  >
    <div class="list-all" role="presentation" style=${{ height: `${count * ROW_HEIGHT}px` }}>
      ${rows.map(
        (number) => html`<div
          key=${number}
          id=${`row-${number}`}
          class=${number === selected ? "row selected" : "row"}
          role="option"
          aria-selected=${number === selected ? "true" : "false"}
          aria-posinset=${number - first + 1}
          aria-setsize=${count}
          style=${{ top: `${(number - first) * ROW_HEIGHT}px` }}
          onClick=${() => onSelect(number)}
        >
          ${renderRow(number)}
        </div>`,
      )}
    </div>
  </div>`
}
