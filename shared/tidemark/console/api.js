// Every call that the page makes goes through `recorded`: it adds the token and keeps what was sent and answered for
// the request inspector.
import { computed, signal } from "./signals.js"
import { addressOf } from "./links.js"

const MAX_CALLS = 200
const MAX_SHOWN = 2000

// The token is kept in the entries of the browser's history that are this page's. It outlives a reload, and no other page can read it: storage
// would be open to every page of this origin, and streams are of this origin too.
export const token = signal(history.state?.token ?? "")
export const calls = signal([])
// What `/v1/me` says; null until it has answered.
export const me = signal(null)
export const meError = signal("")
export const needsToken = computed(() => Boolean(me.value?.authorization) && !token.value)

// While the server does not answer: when it did last; else 0. And how often it was away and came back.
export const silentSince = signal(0)
export const returns = signal(0)
let heardAt = Date.now()

export const sinceHeard = () => Date.now() - heardAt

function heard() {
  heardAt = Date.now()
  if (!silentSince.value) return
  silentSince.value = 0
  returns.value++
}

let number = 0

function finish(call, change) {
  Object.assign(call, change, { ms: performance.now() - call.began })
  calls.value = [...calls.value]
}

export async function recorded(input, init = {}) {
  const url = new URL(input instanceof Request ? input.url : input, location.href)
  const headers = new Headers(init.headers)
  if (token.value && !headers.has("Authorization")) headers.set("Authorization", `Bearer ${token.value}`)
  const call = {
    number: ++number,
    at: Date.now(),
    began: performance.now(),
    method: init.method ?? "GET",
    path: url.pathname + url.search,
    requestHeaders: [...headers].map(([name, value]) => [name, name === "authorization" ? "Bearer …" : value]),
    body: typeof init.body === "string" ? init.body.slice(0, MAX_SHOWN) : "",
    status: 0,
    responseHeaders: [],
    failure: "",
    ms: null,
  }
  calls.value = [call, ...calls.value].slice(0, MAX_CALLS)
  try {
    const response = await fetch(url, { ...init, headers, cache: "no-cache" })
    heard()
    finish(call, { status: response.status, responseHeaders: [...response.headers] })
    return response
  } catch (error) {
    const isCancelled = error.name === "AbortError"
    if (!isCancelled) silentSince.value ||= heardAt
    finish(call, { failure: isCancelled ? "cancelled by this page" : String(error.message ?? error) })
    throw error
  }
}

export class Refused extends Error {
  constructor(status, message) {
    super(message)
    this.status = status
  }
}

async function reason(response) {
  const text = await response.text()
  try {
    const { error } = JSON.parse(text)
    return error?.message ?? error ?? text
  } catch {
    return text || `HTTP ${response.status}`
  }
}

// The response of a request, or Refused with the server's own words.
export async function send({ method = "GET", path, headers, body }, signal) {
  const response = await recorded(addressOf(path), { method, headers, body, signal })
  if (!response.ok && response.status !== 304) throw new Refused(response.status, await reason(response))
  return response
}

export const getJson = async (path, signal) => (await send({ path }, signal)).json()

export async function loadMe() {
  try {
    me.value = await getJson("/v1/me")
    meError.value = ""
  } catch (error) {
    if (error.status < 500) me.value = { authorization: true, token: Boolean(token.value), scopes: [] }
    meError.value = error.message
  }
}

export async function setToken(value) {
  token.value = value.trim().replace(/^Bearer\s+/i, "")
  rememberToken()
  await loadMe()
}

const rememberToken = () => history.replaceState({ ...history.state, token: token.value }, "")
addEventListener("hashchange", rememberToken)

const grants = computed(() =>
  (me.value?.scopes ?? []).map((scope) => {
    const [right, where] = [scope.slice(0, scope.indexOf(":")), scope.slice(scope.indexOf(":") + 1)]
    const slash = where.indexOf("/")
    if (slash < 0) return { right, bucket: where, prefix: "", exact: false }
    const pattern = where.slice(slash + 1)
    const exact = !pattern.endsWith("*")
    return { right, bucket: where.slice(0, slash), prefix: decodeURIComponent(exact ? pattern : pattern.slice(0, -1)), exact }
  }),
)

// "" where one of the rights is granted, else the scope that is missing. The server decides; this only tells in advance.
export function missing(rights, bucket, streamId) {
  if (me.value === null) return ""
  const isGranted = grants.value.some(
    (grant) =>
      rights.includes(grant.right) &&
      (grant.bucket === "*" || grant.bucket === bucket) &&
      (streamId === undefined
        ? !grant.prefix && !grant.exact
        : grant.exact
          ? grant.prefix === streamId
          : streamId.startsWith(grant.prefix)),
  )
  const where = streamId === undefined ? bucket : `${bucket}/${encodeURIComponent(streamId).replaceAll("%2F", "/")}`
  return isGranted ? "" : rights.map((right) => `${right}:${where}`).join(" or ")
}

// `/v1/stream/a/b` is bucket v1, stream a/b; `/agents/x` is bucket agents, stream x.
export function placeOf(path) {
  const plain = path.match(/^\/v1\/streams?\/(.+)$/)
  if (plain) return { bucket: "v1", streamId: decode(plain[1]) }
  const [, bucket, streamId] = path.split("/")
  return { bucket: bucket ?? "", streamId: decode(streamId ?? "") }
}

export function pathOf(bucket, streamId) {
  if (bucket === "v1") return `/v1/stream/${streamId.split("/").map(encodeURIComponent).join("/")}`
  return `/${bucket}/${encodeURIComponent(streamId)}`
}

export function decode(text) {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}
