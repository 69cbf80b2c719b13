// What a page shows is loaded, and some of it again every few seconds.
import { useEffect, useState } from "./preact-hooks.js"
import { returns, token } from "./api.js"

// What `load(signal)` returns, as `{ found, error, key }`, and a function that loads it again. `key` says what is loaded: with
// another one, or another token, it begins anew; what was found under the old one stays until then. `everyMs` is how often, while the page is seen; 0 is once. `pauseMs` is the
// wait before the first time, for what is typed. While the server is away, what was found stays; with `keepsFound` also
// where the server refuses. Once the server answers again after it was away, all is loaded again.
export function useLoaded(load, key, { everyMs = 0, pauseMs = 0, keepsFound = false } = {}) {
  const [state, setState] = useState({ key, found: null, error: null })
  const [round, setRound] = useState(0)
  useEffect(() => {
    const abort = new AbortController()
    const fail = (error) =>
      setState((old) => ({ key, found: old.key === key && (keepsFound || !error.status) ? old.found : null, error }))
    const look = () =>
      load(abort.signal).then(
        (found) => abort.signal.aborted || setState({ key, found, error: null }),
        (error) => abort.signal.aborted || fail(error),
      )
    const first = setTimeout(look, pauseMs)
    const timer = everyMs ? setInterval(() => document.hidden || look(), everyMs) : null
    return () => {
      clearTimeout(first)
      clearInterval(timer)
      abort.abort()
    }
  }, [key, round, everyMs, token.value, returns.value])
  return [state, () => setRound((old) => old + 1)]
}
