// The whole official suite, registered as vitest tests. Its own command line finds no tests under vitest 4.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

runConformanceTests({
  baseUrl: process.env.SUITE_BASE_URL,
  longPollTimeoutMs: Number(process.env.SUITE_LONG_POLL_MS),
  subscriptions: true,
})
