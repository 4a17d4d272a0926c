// When to try again, and what the chip in the header says. Pure.

export const FIRST_MS = 500;
export const LONGEST_MS = 30_000;
export const POLL_MS = 5_000;
export const FAILURES_BEFORE_POLLING = 3;
export const BANNER_AFTER_MS = 5_000;

/** Wait before attempt `failures` + 1, in ms: doubling, at most 30 s, with full jitter (`random` in 0..1). */
export function wait(failures: number, random: number): number {
  const ceiling = Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.max(failures - 1, 0));
  return Math.round(ceiling * (0.5 + 0.5 * random));
}

export type State =
  | "off"
  | "live"
  | "delayed"
  | "reconnecting"
  | "polling"
  | "offline"
  | "signed-out";

export interface Standing {
  open: boolean;
  signedOut: boolean;
  paused: boolean;
  failures: number;
  /** ms since anything was heard over the socket. */
  silentMs: number;
  /** ms since the last poll that was answered, Infinity when none was. */
  polledMs: number;
  /** ms between two beats. */
  intervalMs: number;
  /** ms until the next attempt. */
  nextMs: number;
}

/** The state of the connection and its words, e.g. `Live 0.4 s`. */
export function chip(standing: Standing): { state: State; words: string } {
  if (standing.signedOut) return { state: "signed-out", words: "Signed out" };
  if (standing.paused) return { state: "off", words: "Paused" };
  if (standing.open) {
    const seconds = standing.silentMs / 1000;
    if (standing.silentMs > 2 * standing.intervalMs) {
      return { state: "delayed", words: `Delayed ${Math.round(seconds)} s` };
    }
    return { state: "live", words: `Live ${seconds.toFixed(seconds < 10 ? 1 : 0)} s` };
  }
  if (standing.failures >= FAILURES_BEFORE_POLLING) {
    if (standing.polledMs <= 2 * POLL_MS) return { state: "polling", words: "Polling every 5 s" };
    return { state: "offline", words: "Offline" };
  }
  const next = Math.max(0, Math.ceil(standing.nextMs / 1000));
  return {
    state: "reconnecting",
    words: next ? `Reconnecting, next try ${next} s` : "Reconnecting",
  };
}

/** Whether the shown data must look old: nothing has come for a while, neither pushed nor polled. */
export function stale(standing: Standing): boolean {
  if (standing.open) return standing.silentMs > 5 * standing.intervalMs;
  return Math.min(standing.silentMs, standing.polledMs) > BANNER_AFTER_MS + 500;
}
