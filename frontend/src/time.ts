// How spans read; the same words as frontend/formatting.py.

const NBSP = "\u00a0";

/** An age in one or two units: 20 s, 41 min, 2 h 41, 1 d 6 h. */
export function age(ms: number): string {
  const whole = Math.max(0, Math.floor(ms / 1000));
  if (whole < 60) return `${whole}${NBSP}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}${NBSP}min`;
  if (whole < 86_400) {
    const minutes = String(Math.floor((whole % 3600) / 60)).padStart(2, "0");
    return `${Math.floor(whole / 3600)}${NBSP}h${NBSP}${minutes}`;
  }
  return `${Math.floor(whole / 86_400)}${NBSP}d${NBSP}${Math.floor((whole % 86_400) / 3600)}${NBSP}h`;
}

/** A running clock: 20.0 s, 2 min 05 s. */
export function running(ms: number, digits: number): string {
  const seconds = Math.max(0, ms / 1000);
  if (seconds < 100) return `${seconds.toFixed(digits)}${NBSP}s`;
  const whole = Math.floor(seconds);
  if (whole < 3600) {
    return `${Math.floor(whole / 60)}${NBSP}min ${String(whole % 60).padStart(2, "0")}${NBSP}s`;
  }
  return `${Math.floor(whole / 3600)}${NBSP}h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")}${NBSP}min`;
}
