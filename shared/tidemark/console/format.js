// Numbers and times for people. A KiB is 1024 bytes.
const UNITS = ["byte", "KiB", "MiB", "GiB", "TiB"]

export function bytes(count) {
  const unit = count < 1024 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(count) / 10))
  return unit ? `${(count / 1024 ** unit).toFixed(1)} ${UNITS[unit]}` : counted(count, UNITS[0])
}

export const time = (ms) => new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z$/, "Z")

export function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000))
  if (seconds < 60) return `${seconds} s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`
  return `${Math.floor(seconds / 86_400)} days`
}

// How long ago, as precisely as anybody wants to know.
export const age = (ms) => duration(ms < 60_000 ? ms : ms - (ms % 60_000)).replace(/ 0 (s|min)$/, "")

export const moment = (ms) => new Date(ms).toLocaleString("en-GB", { month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" }).replace(",", "")

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB")

export function short(count) {
  if (count >= 1000) return count.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 })
  return String(count >= 100 ? Math.round(count) : Number(count.toFixed(count >= 10 ? 1 : 2)))
}

// JSON as it was sent, with the characters that its escapes stand for.
export const unescaped = (json) =>
  json.replace(/\\(?:u([\da-f]{4})|.)/gis, (escape, code) => {
    const character = code ? String.fromCharCode(parseInt(code, 16)) : ""
    return character < " " || character === '"' || character === "\\" ? escape : character
  })

export const number = (count) => count.toLocaleString("en")
export const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`
