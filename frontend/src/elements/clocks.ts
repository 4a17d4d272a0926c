// Elements that tell time: how long ago, and how long by now. The server's clock counts, not this machine's.

import { age, running } from "../time";

let offsetMs = 0;

/** The server's clock at page load, in ms since the epoch. */
export function setServerNow(serverMs: number): void {
  offsetMs = serverMs - Date.now();
}

function now(): number {
  return Date.now() + offsetMs;
}

class Ticking extends HTMLElement {
  private timer = 0;
  protected periodMs = 1000;

  connectedCallback(): void {
    this.tick();
    this.timer = window.setInterval(() => {
      if (!document.hidden) this.tick();
    }, this.periodMs);
  }

  disconnectedCallback(): void {
    window.clearInterval(this.timer);
  }

  protected tick(): void {}
}

/** `<time-ago datetime="…Z">`: 20 s, 41 min. */
export class TimeAgo extends Ticking {
  protected override tick(): void {
    const at = Date.parse(this.getAttribute("datetime") ?? "");
    if (!Number.isNaN(at)) this.textContent = age(now() - at);
  }
}

/** `<run-clock data-since="ms" data-digits="1">`: counts up while something runs. */
export class RunClock extends Ticking {
  override connectedCallback(): void {
    this.periodMs = this.dataset.digits === "0" ? 1000 : 100;
    super.connectedCallback();
  }

  protected override tick(): void {
    const since = Number(this.dataset.since);
    this.textContent = running(now() - since, Number(this.dataset.digits ?? 1));
  }
}
