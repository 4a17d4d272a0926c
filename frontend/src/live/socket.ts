// The one socket of the tab: keeps it open, asks for what was missed, falls back to polling.

import {
  chip,
  FAILURES_BEFORE_POLLING,
  POLL_MS,
  type Standing,
  type State,
  stale,
  wait,
} from "./backoff";
import { parse, Sequence } from "./sequence";

export type Listener = (topics: string[]) => void;

const DEAD_AFTER_BEATS = 7;
const SIGNED_OUT = 4401;

/** Live news of the page's topics. Listeners hear which topics to read again; `status` hears how it stands. */
export class Live {
  private socket: WebSocket | null = null;
  private listeners = new Set<Listener>();
  private sequence: Sequence;
  private failures = 0;
  private heard = performance.now();
  private polled = Number.POSITIVE_INFINITY;
  private nextAt = 0;
  private intervalMs = 5_000;
  private signedOut = false;
  private paused = false;
  private leaving = false;

  constructor(
    private readonly url: string,
    private readonly topics: string[],
    sequence: number,
    private readonly status: (state: State, words: string, old: boolean) => void,
  ) {
    this.sequence = new Sequence(sequence);
    window.addEventListener("pagehide", () => this.leave());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.tick();
    });
    window.setInterval(() => this.tick(), 250);
    this.connect();
  }

  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Something was answered over GET: the data on the page is of now. */
  answered(): void {
    this.polled = performance.now();
  }

  /** A GET was not answered: whatever was answered before is no sign of life. */
  unanswered(): void {
    this.polled = Number.POSITIVE_INFINITY;
  }

  signOut(): void {
    this.signedOut = true;
    this.socket?.close();
  }

  togglePause(): void {
    this.paused = !this.paused;
    if (!this.paused) this.tell(this.topics);
  }

  private leave(): void {
    this.leaving = true;
    this.socket?.close();
  }

  private connect(): void {
    if (this.topics.length === 0) return;
    const socket = new WebSocket(this.url, "v1");
    this.socket = socket;
    socket.onopen = () => socket.send(JSON.stringify(this.sequence.subscription(this.topics)));
    socket.onmessage = (event) => this.take(String(event.data));
    socket.onclose = (event) => this.closed(socket, event.code);
  }

  private take(text: string): void {
    const message = parse(text);
    if (message === null) return;
    this.heard = performance.now();
    if ("hello" in message) {
      this.failures = 0;
      this.intervalMs = message.hello.interval * 1000;
    }
    const news = this.sequence.take(message);
    if (news.topics.length) this.tell(news.topics);
  }

  private closed(socket: WebSocket, code: number): void {
    if (this.socket !== socket) return;
    this.socket = null;
    this.unanswered();
    if (code === SIGNED_OUT) this.signedOut = true;
    if (this.signedOut || this.leaving) return;
    this.failures += 1;
    this.nextAt = performance.now() + wait(this.failures, Math.random());
  }

  private tell(topics: string[]): void {
    if (this.paused) return;
    for (const listener of this.listeners) listener(topics);
  }

  private standing(): Standing {
    const now = performance.now();
    return {
      open: this.socket?.readyState === WebSocket.OPEN,
      signedOut: this.signedOut,
      paused: this.paused,
      failures: this.failures,
      silentMs: now - this.heard,
      polledMs: now - this.polled < 0 ? Number.POSITIVE_INFINITY : now - this.polled,
      intervalMs: this.intervalMs,
      nextMs: this.nextAt - now,
    };
  }

  private lastPoll = 0;

  private tick(): void {
    if (this.topics.length === 0 || this.leaving) return;
    const now = performance.now();
    const standing = this.standing();
    if (standing.open && standing.silentMs > DEAD_AFTER_BEATS * this.intervalMs)
      this.socket?.close();
    if (!this.signedOut && this.socket === null && now >= this.nextAt) this.connect();
    const polling = !standing.open && this.failures >= FAILURES_BEFORE_POLLING && !this.signedOut;
    if (polling && now - this.lastPoll >= POLL_MS && !document.hidden) {
      this.lastPoll = now;
      this.tell(this.topics);
    }
    const { state, words } = chip(standing);
    this.status(state, words, !this.signedOut && stale(standing));
  }
}
