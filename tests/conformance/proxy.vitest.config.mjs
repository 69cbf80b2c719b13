import { fileURLToPath } from "node:url"
import { defineConfig } from "vitest/config"

export default defineConfig({
  cacheDir: fileURLToPath(new URL("../../node_modules/.vite", import.meta.url)),
  test: { include: ["src/__tests__/**/*.test.ts"], exclude: [], testTimeout: 30_000, hookTimeout: 30_000 },
})
