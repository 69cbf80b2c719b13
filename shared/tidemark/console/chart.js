// Numbers over time, as lines.
import { useEffect, useRef, useState } from "./preact-hooks.js"
import { clock } from "./format.js"
import { html } from "./html.js"

const HEIGHT = 116
const [LEFT, RIGHT, TOP, BOTTOM] = [56, 20, 10, 22]
const LEAST_SECONDS = 300
const TICK_PX = 64
const STEPS = [60, 120, 300, 600, 900, 1800]

// The first round number that is not below, of which the half is round too, of the unit (1, KiB, MiB…) that it is told in.
function roundUp(value, base) {
  const unit = base ** Math.max(0, Math.floor(Math.log(Math.max(value, 1)) / Math.log(base)))
  const power = 10 ** Math.floor(Math.log10(Math.max(value / unit, 1)))
  return [1, 2, 4, 6, 8, 10].find((each) => each * power * unit >= value) * power * unit
}

function ticksOf(start, end, width) {
  const step = STEPS.find((each) => ((end - start) / each) * TICK_PX <= width) ?? STEPS.at(-1)
  const first = Math.ceil(start / step) * step
  return Array.from({ length: Math.floor((end - first) / step) + 1 }, (_, index) => first + index * step)
}

// `times` in seconds; each of `series` has a name, the class of its colour, and its values. `show` writes a value, whose
// units are powers of `base`, and the scale goes to `least` at least. The latest values stand in its head, or those under the pointer.
export function Chart({ title, times, series, show, base = 1000, least = 1 }) {
  const box = useRef(null)
  const [width, setWidth] = useState(0)
  const [point, setPoint] = useState(null)
  useEffect(() => {
    const observer = new ResizeObserver(() => setWidth(box.current.clientWidth))
    observer.observe(box.current)
    return () => observer.disconnect()
  }, [])
  const end = times.at(-1)
  const start = Math.min(times[0], end - LEAST_SECONDS)
  const high = roundUp(Math.max(least, ...series.flatMap((each) => each.values)), base)
  const inner = Math.max(0, width - LEFT - RIGHT)
  const x = (at) => LEFT + ((at - start) / (end - start)) * inner
  const y = (value) => HEIGHT - BOTTOM - (value / high) * (HEIGHT - TOP - BOTTOM)
  // A line of no length is a point, which the first value is.
  const line = (values) => `${values.map((value, index) => `${index ? "L" : "M"}${x(times[index]).toFixed(1)} ${y(value).toFixed(1)}`).join("")}${values.length === 1 ? "h0" : ""}`
  const area = (values) => `${line(values)}L${x(end)} ${y(0)}L${x(times[0])} ${y(0)}Z`
  const onMove = ({ offsetX }) => {
    const at = start + ((offsetX - LEFT) / inner) * (end - start)
    const next = times.findIndex((each) => each >= at)
    setPoint(next < 0 ? null : next)
  }
  const shown = Math.min(point ?? Infinity, times.length - 1)
  return html`<section class="chart" aria-label=${title}>
    <h2>${title}<small>${point === null ? "" : clock(times[shown] * 1000)}</small></h2>
    <p>${series.map((each) => html`<span key=${each.name}><i class=${`key ${each.colour}`}></i><b>${show(each.values[shown])}</b> ${each.name}</span>`)}</p>
    <div ref=${box}><svg width=${width} height=${HEIGHT} aria-hidden="true" onPointerMove=${onMove} onPointerLeave=${() => setPoint(null)}>
      ${[0, high / 2, high].map((value) => html`<g key=${value}><path class="grid" d=${`M${LEFT} ${y(value)}h${inner}`} /><text x=${LEFT - 6} y=${y(value) + 4} text-anchor="end">${value ? show(value) : "0"}</text></g>`)}
      ${ticksOf(start, end, inner).map((at) => html`<text key=${at} x=${x(at)} y=${HEIGHT - 6} text-anchor="middle">${clock(at * 1000).slice(0, 5)}</text>`)}
      ${series.map((each) => html`<g key=${each.name} class=${each.colour}><path class="area" d=${area(each.values)} /><path class=${times.length === 1 ? "line point" : "line"} d=${line(each.values)} /></g>`)}
      ${point !== null && html`<path class="pointer" d=${`M${x(times[shown])} ${TOP}V${HEIGHT - BOTTOM}`} />`}
    </svg></div>
  </section>`
}
