// Numbers over time.
import { useEffect, useRef, useState } from "./preact-hooks.js"
import { clock } from "./format.js"
import { html } from "./html.js"
import uPlot from "./uplot.js"

const HEIGHT = 112
const LEAST_SECONDS = 300

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()
const line = (name) => () => colour(name)
const faint = (name) => () => `${colour(name)}22`

function options(width, series, show, onPoint) {
  const axis = { stroke: line("--soft"), font: "11px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: line("--line"), width: 1 } }
  return {
    width,
    height: HEIGHT,
    padding: [8, 16, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { x: { range: (_, low, high) => [Math.min(low, high - LEAST_SECONDS), high] }, y: { range: (_, _low, high) => [0, Math.max(high * 1.1, 1)] } },
    axes: [
      { ...axis, size: 22, space: 64, grid: { show: false }, values: (_, ticks) => ticks.map((each) => clock(each * 1000).slice(0, 5)) },
      { ...axis, size: 48, space: 32, values: (_, ticks) => ticks.map((each) => (each ? show(each) : "0")) },
    ],
    series: [{}, ...series.map((each) => ({ stroke: line(each.colour), fill: faint(each.colour), width: 1.5, points: { show: false } }))],
    hooks: { setCursor: [(plot) => onPoint(plot.cursor.idx ?? null)] },
  }
}

// `times` in seconds; each of `series` has a name, a colour of the style sheet, and its values. `show` writes a value. The
// latest values stand in its head, or those under the pointer.
export function Chart({ title, times, series, show }) {
  const box = useRef(null)
  const plot = useRef(null)
  const [point, setPoint] = useState(null)
  const data = [times, ...series.map((each) => each.values)]
  useEffect(() => {
    const made = (plot.current = new uPlot(options(box.current.clientWidth, series, show, setPoint), data, box.current))
    const observer = new ResizeObserver(() => made.setSize({ width: box.current.clientWidth, height: HEIGHT }))
    observer.observe(box.current)
    const dark = matchMedia("(prefers-color-scheme: dark)")
    const redraw = () => made.redraw(false)
    const colours = new MutationObserver(redraw)
    colours.observe(document.documentElement, { attributes: true, attributeFilter: ["data-colours"] })
    dark.addEventListener("change", redraw)
    return () => {
      observer.disconnect()
      colours.disconnect()
      dark.removeEventListener("change", redraw)
      made.destroy()
    }
  }, [])
  useEffect(() => plot.current.setData(data), [times])
  const at = point ?? times.length - 1
  return html`<section class="chart" aria-label=${title}>
    <h2>${title}<small>${point === null ? "" : clock(times[at] * 1000)}</small></h2>
    <p>${series.map((each) => html`<span key=${each.name} class="key" data-colour=${each.colour}><b>${show(each.values[at] ?? 0)}</b> ${each.name}</span>`)}</p>
    <div ref=${box} aria-hidden="true"></div>
  </section>`
}
