// The page's own addresses: everything that is shown is in the part behind "#".
export const linkTo = (path, query = {}) => `#/stream?${new URLSearchParams({ path, ...query })}`

export function parseAddress(hash) {
  const [place, query] = hash.replace(/^#/, "").split("?")
  return { place: place || "/", query: new URLSearchParams(query ?? "") }
}

export function replaceQuery(change) {
  const { place, query } = parseAddress(location.hash)
  for (const [name, value] of Object.entries(change)) value === null ? query.delete(name) : query.set(name, value)
  history.replaceState(null, "", `#${place}?${query}`)
}
