import { defineConfig } from "vitest/config";

export default defineConfig({
  // Relative, so that the page works below any prefix that Airflow is served under.
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../web/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  test: { include: ["test/**/*.test.ts"] },
});
