import { defineConfig } from "vitest/config";

// The manifest is not hidden (collectstatic skips names that begin with a dot) and nothing is inlined:
// the content security policy of the pages allows files of this origin and nothing else.
export default defineConfig({
  base: "/static/",
  build: {
    outDir: "dist",
    assetsDir: "app",
    emptyOutDir: true,
    manifest: "manifest.json",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    rolldownOptions: { input: { main: "src/main.ts" } },
  },
  test: { include: ["src/**/*.test.ts"] },
});
