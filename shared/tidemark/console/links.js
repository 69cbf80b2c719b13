// The page's own addresses: everything that is shown is in the part behind "#".
export const linkTo = (path, query = {}) => `#/stream?${new URLSearchParams({ path, ...query })}`

export function parseAddress(hash) {
  const [place, query] = hash.replace(/^#/, "").split("?")
  return { place: place || "/", query: new URLSearchParams(query ?? "") }
}

// `state` is what this entry of the browser's history remembers, for one that comes back to it.
export function replaceQuery(change, state = null) {
  const { place, query } = parseAddress(location.hash)
  for (const [name, value] of Object.entries(change)) value === null ? query.delete(name) : query.set(name, value)
  history.replaceState({ ...state, token: history.state?.token }, "", `#${place}?${query}`)
}
