// What the socket says, turned into what the page must read again. Pure: no socket, no clock, no page.

export interface Notice {
  n: number;
  t: string;
  k: string;
  at: string;
  d: Record<string, unknown>;
}

export type Message =
  | { hello: { seq: number; topics: string[]; interval: number } }
  | { gap: true; t: string }
  | { beat: number }
  | Notice;

/** Topics to read again because of one message, and why. */
export interface News {
  topics: string[];
  gap: boolean;
}

const NOTHING: News = { topics: [], gap: false };
const REMEMBERED = 512;

/**
 * Keeps the last sequence number and the numbers already seen.
 *
 * Numbers are given out before their transactions commit, so a lower one may arrive after a higher one and is news;
 * the server repeats some on reconnect, and a repeated one is not.
 */
export class Sequence {
  private seen = new Set<number>();

  constructor(public last: number) {}

  /** The message that subscribes, from where the page or the last connection stood. */
  subscription(topics: Iterable<string>): { sub: string[]; since: number } {
    return { sub: [...topics], since: this.last };
  }

  take(message: Message): News {
    if ("hello" in message) {
      // A number below ours means another database: everything shown is of another history.
      const restarted = message.hello.seq < this.last;
      this.last = message.hello.seq > this.last || restarted ? message.hello.seq : this.last;
      if (!restarted) return NOTHING;
      this.seen.clear();
      return { topics: message.hello.topics, gap: true };
    }
    if ("gap" in message) return { topics: [message.t], gap: true };
    if ("beat" in message) return NOTHING;
    if (this.seen.has(message.n)) return NOTHING;
    this.remember(message.n);
    this.last = Math.max(this.last, message.n);
    return { topics: [message.t], gap: false };
  }

  private remember(n: number): void {
    this.seen.add(n);
    if (this.seen.size > REMEMBERED) {
      const [oldest] = this.seen;
      if (oldest !== undefined) this.seen.delete(oldest);
    }
  }
}

/** The message in a frame, or null when it is not one of ours. */
export function parse(text: string): Message | null {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  if (typeof value !== "object" || value === null) return null;
  const known = "hello" in value || "gap" in value || "beat" in value || "n" in value;
  return known ? (value as Message) : null;
}
