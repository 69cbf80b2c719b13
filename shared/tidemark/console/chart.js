// What came in each second of the last minute.
import { useEffect, useRef } from "./preact-hooks.js"
import { bytes } from "./format.js"
import { html } from "./html.js"
import uPlot from "./uplot.js"

const SECONDS = 60

export class Rate {
  constructor() {
    this.seconds = new Map()
  }

  add(count) {
    const now = Math.floor(Date.now() / 1000)
    this.seconds.set(now, (this.seconds.get(now) ?? 0) + count)
    for (const second of this.seconds.keys()) if (second < now - SECONDS) this.seconds.delete(second)
  }

  series() {
    const now = Math.floor(Date.now() / 1000)
    const times = Array.from({ length: SECONDS }, (_, index) => now - SECONDS + 1 + index)
    return [times, times.map((second) => this.seconds.get(second) ?? 0)]
  }
}

// `kind` is the stream's: of JSON messages are counted, of others bytes, because the protocol knows no messages there.
export function Sparkline({ rate, kind }) {
  const unit = (count) => (kind === "json" ? `${count} messages/s` : `${bytes(count)}/s`)
  const box = useRef(null)
  const text = useRef(null)
  useEffect(() => {
    const colour = getComputedStyle(box.current).getPropertyValue("--accent")
    const plot = new uPlot(
      {
        width: 240,
        height: 48,
        legend: { show: false },
        cursor: { show: false },
        axes: [{ show: false }, { show: false }],
        scales: { y: { range: (_, _low, high) => [0, Math.max(high, 1)] } },
        series: [{}, { stroke: colour, fill: `${colour.trim()}33`, width: 2, points: { show: false } }],
      },
      rate.series(),
      box.current,
    )
    const draw = () => {
      const series = rate.series()
      plot.setData(series)
      text.current.textContent = unit(series[1].at(-2))
    }
    const timer = setInterval(draw, 1000)
    return () => {
      clearInterval(timer)
      plot.destroy()
    }
  }, [rate, kind])
  return html`<div class="sparkline"><div ref=${box} aria-hidden="true"></div><span ref=${text}>${unit(0)}</span></div>`
}
