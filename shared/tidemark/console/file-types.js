// What bytes look like, by how they begin.
const BEGINNINGS = [
  ["PNG image", "png", "89504e47"],
  ["JPEG image", "jpg", "ffd8ff"],
  ["GIF image", "gif", "47494638"],
  ["PDF", "pdf", "25504446"],
  ["ZIP archive", "zip", "504b0304"],
  ["gzip", "gz", "1f8b"],
  ["Zstandard", "zst", "28b52ffd"],
  ["SQLite database", "sqlite", "53514c69746520666f726d6174"],
  ["Parquet", "parquet", "50415231"],
  ["WebAssembly", "wasm", "0061736d"],
  ["Ogg", "ogg", "4f676753"],
]

export function guess(bytes) {
  const start = Array.from(bytes.subarray(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("")
  const [name, extension] = BEGINNINGS.find(([, , beginning]) => start.startsWith(beginning)) ?? ["", "bin"]
  return { name, extension }
}

// Hands bytes to the reader as a file.
export function save(bytes, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([bytes])), download: name })
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000)
}
