import { fileURLToPath } from "node:url"
import { defineConfig } from "vitest/config"

export default defineConfig({
  // Without this a node_modules directory for the cache would appear beside this file.
  cacheDir: fileURLToPath(new URL("../../node_modules/.vite", import.meta.url)),
  test: { include: ["suite.test.mjs"], testTimeout: 40_000, hookTimeout: 40_000 },
})
