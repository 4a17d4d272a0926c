import { expect, test } from "vitest";
import { chip, type Standing, stale, wait } from "./backoff";

const calm: Standing = {
  open: true,
  signedOut: false,
  paused: false,
  failures: 0,
  silentMs: 400,
  polledMs: Number.POSITIVE_INFINITY,
  intervalMs: 5000,
  nextMs: 0,
};

test("waits double up to thirty seconds and are spread", () => {
  expect([1, 2, 3, 4].map((failures) => wait(failures, 1))).toEqual([500, 1000, 2000, 4000]);
  expect(wait(40, 1)).toBe(30_000);
  expect(wait(1, 0)).toBe(250);
});

test.each([
  [calm, "live", "Live 0.4 s"],
  [{ ...calm, silentMs: 12_000 }, "delayed", "Delayed 12 s"],
  [
    { ...calm, open: false, failures: 1, nextMs: 3400 },
    "reconnecting",
    "Reconnecting, next try 4 s",
  ],
  [{ ...calm, open: false, failures: 3, polledMs: 100 }, "polling", "Polling every 5 s"],
  [{ ...calm, open: false, failures: 9 }, "offline", "Offline"],
  [{ ...calm, open: false, signedOut: true }, "signed-out", "Signed out"],
  [{ ...calm, paused: true }, "off", "Paused"],
] as const)("the chip says how it stands", (standing, state, words) => {
  expect(chip(standing)).toEqual({ state, words });
});

test("data is old within six seconds of a lost connection, unless polling brings it", () => {
  expect(stale({ ...calm, open: false, silentMs: 3000 })).toBe(false);
  expect(stale({ ...calm, open: false, silentMs: 6000 })).toBe(true);
  expect(stale({ ...calm, open: false, silentMs: 60_000, polledMs: 4000 })).toBe(false);
});
