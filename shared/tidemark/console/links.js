// Where a path of this server is, which a proxy may serve below a path of its own.
export const addressOf = (path) => new URL(`../..${path}`, import.meta.url).href

// The page's own addresses: everything that is shown is in the part behind "#".
export const linkTo = (path, query = {}) => `#/stream?${new URLSearchParams({ path, ...query })}`

export function parseAddress(hash) {
  const [place, query] = hash.replace(/^#/, "").split("?")
  return { place: place || "/", query: new URLSearchParams(query ?? "") }
}

// Where the page is. An address that the reader has just gone to is not it before its event has come.
let here = location.hash
addEventListener("hashchange", () => (here = location.hash))

// `state` is what this entry of the browser's history remembers, for one that comes back to it.
export function replaceQuery(change, state = null) {
  if (location.hash !== here) return
  const { place, query } = parseAddress(here)
  for (const [name, value] of Object.entries(change)) value === null ? query.delete(name) : query.set(name, value)
  history.replaceState({ ...state, token: history.state?.token }, "", `#${place}?${query}`)
  here = location.hash
}
