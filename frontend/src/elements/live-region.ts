// A part of the page that is read again over GET when one of its topics has news.

import type { Live } from "../live/socket";

interface Htmx {
  trigger(element: Element, name: string): void;
}
declare global {
  interface Window {
    htmx?: Htmx;
  }
}

interface Swap {
  elt: Element;
  shouldSwap: boolean;
  serverResponse: string;
}

const LEAST_MS = 1_000;

let hub: Live | null = null;

export function useLive(live: Live): void {
  hub = live;
}

/** What tells the entries of a list apart, in the order they are shown. */
function entries(within: ParentNode): string[] {
  return [...within.querySelectorAll<HTMLElement>("[data-entry]")].map(
    ({ dataset }) => dataset.entry ?? "",
  );
}

/**
 * Attributes: `data-topics` (space separated), `data-wait` (least seconds between two reads), `data-every` (read by the
 * clock too, in seconds, while the page is seen), `data-hold` (do not move rows under a pointer: count instead).
 */
export class LiveRegion extends HTMLElement {
  private stop: (() => void) | null = null;
  private lastRead = 0;
  private timer = 0;
  private reading = false;
  private again = false;
  /** They have asked for what the pill counts. */
  private wanted = false;
  private dropped = false;
  private clock = 0;

  connectedCallback(): void {
    const topics = new Set((this.dataset.topics ?? "").split(" "));
    this.stop =
      hub?.listen((named) => {
        if (named.some((topic) => topics.has(topic))) this.schedule();
      }) ?? null;
    this.addEventListener("htmx:configRequest", this.ask);
    this.addEventListener("htmx:beforeSwap", this.mayChange);
    this.addEventListener("htmx:afterRequest", this.answered);
    const every = Number(this.dataset.every ?? 0);
    if (every > 0) {
      this.clock = window.setInterval(() => {
        if (!document.hidden && !this.held()) this.schedule();
      }, every * 1000);
    }
  }

  disconnectedCallback(): void {
    this.stop?.();
    window.clearTimeout(this.timer);
    window.clearInterval(this.clock);
  }

  /** Whether a person is busy in here: nothing moves under the pointer, nothing steals the focus. */
  private held(): boolean {
    const focus = document.activeElement;
    const inside = focus !== null && focus !== this && this.contains(focus);
    return inside || ("hold" in this.dataset && this.matches(":hover"));
  }

  /** An answer that finds somebody busy in here waits until they leave; the pill counts its entries that are not shown. */
  private mayChange = (event: Event): void => {
    const { detail } = event as CustomEvent<Swap>;
    if (detail.elt !== this || !detail.shouldSwap || this.wanted || !this.held()) return;
    detail.shouldSwap = false;
    this.dropped = true;
    this.addEventListener("mouseleave", this.left);
    this.addEventListener("focusout", this.left);
    const pill = this.querySelector<HTMLButtonElement>("[data-new]");
    if (!pill) return;
    const shown = new Set(entries(this));
    const answer = new DOMParser().parseFromString(detail.serverResponse, "text/html");
    const missing = entries(answer).filter((entry) => !shown.has(entry)).length;
    pill.hidden = missing === 0;
    pill.textContent = `${missing} new`;
    pill.onclick = () => {
      this.wanted = true;
      this.read();
    };
  };

  private left = (): void => {
    this.removeEventListener("mouseleave", this.left);
    this.removeEventListener("focusout", this.left);
    this.schedule();
  };

  private schedule(): void {
    if (this.timer) return;
    const least = Math.max(LEAST_MS, Number(this.dataset.wait ?? 0) * 1000);
    const pause = Math.max(0, this.lastRead + least - performance.now());
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      this.read();
    }, pause);
  }

  private read(): void {
    if (this.reading) {
      this.again = true;
      return;
    }
    this.reading = true;
    this.lastRead = performance.now();
    if (window.htmx) window.htmx.trigger(this, "refresh");
    else this.reading = false;
  }

  private ask = (event: Event): void => {
    const { headers, elt } = (event as CustomEvent).detail;
    if (elt === this && this.dataset.etag) headers["If-None-Match"] = this.dataset.etag;
  };

  private answered = (event: Event): void => {
    const { xhr, elt } = (event as CustomEvent<{ xhr: XMLHttpRequest; elt: Element }>).detail;
    if (elt !== this) return;
    this.reading = false;
    if (!this.again) this.wanted = false;
    if (xhr.status === 401) hub?.signOut();
    if (xhr.status === 0) hub?.unanswered();
    if (xhr.status === 200 || xhr.status === 304) {
      hub?.answered();
      const etag = xhr.getResponseHeader("ETag");
      if (etag && !this.dropped) this.dataset.etag = etag;
      this.dropped = false;
      if (this.querySelector("[data-done]")) this.finish();
    }
    if (this.again) {
      this.again = false;
      this.schedule();
    }
  };

  /** What was running has ended: no more reading by the clock, and its neighbours read once more. */
  private finish(): void {
    for (const region of document.querySelectorAll<LiveRegion>("live-region[data-every]")) {
      if (!region.clock) continue;
      window.clearInterval(region.clock);
      region.clock = 0;
      if (region !== this) region.schedule();
    }
  }
}

/** Make the data of every region look as old as it is, or fresh again. */
export function veil(old: boolean, since: string): void {
  for (const region of document.querySelectorAll<HTMLElement>("live-region")) {
    const shown = region.querySelector(":scope > .veil");
    if (old && !shown) {
      region.dataset.stale = "";
      const cover = document.createElement("div");
      cover.className = "veil";
      const words = document.createElement("span");
      words.textContent = `as of ${since}`;
      cover.append(words);
      region.append(cover);
    } else if (!old && shown) {
      delete region.dataset.stale;
      shown.remove();
    }
  }
}
