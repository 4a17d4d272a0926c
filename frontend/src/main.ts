import "../styles/index.css";
import { RunClock, setServerNow, TimeAgo } from "./elements/clocks";
import { LiveRegion, useLive, veil } from "./elements/live-region";
import { keyboard } from "./keyboard";
import { BANNER_AFTER_MS, type State } from "./live/backoff";
import { Live } from "./live/socket";

const QUIET_AT_START_MS = 2_000;

let freshAt = new Date();
let troubleSince = 0;

function showStatus(state: State, words: string, old: boolean): void {
  const label = document.querySelector<HTMLElement>("live-chip");
  const text = label?.querySelector("span");
  if (label && text && text.textContent !== words) {
    text.textContent = words;
    // A screen reader hears changes of state, not each tenth of a second.
    if (label.dataset.state !== state) label.setAttribute("aria-label", words);
    label.dataset.state = state;
  }
  const trouble = state === "reconnecting" || state === "offline" || state === "signed-out";
  if (!trouble) {
    troubleSince = 0;
    if (state !== "delayed") freshAt = new Date();
  } else if (!troubleSince) troubleSince = performance.now();
  const since = `${freshAt.toISOString().slice(11, 19)} UTC`;
  const lasting = troubleSince > 0 && performance.now() - troubleSince > BANNER_AFTER_MS;
  const banner = document.querySelector<HTMLElement>("#connection");
  if (banner && performance.now() > QUIET_AT_START_MS) {
    const shown = state === "signed-out" || (lasting && trouble);
    banner.hidden = !shown;
    const message =
      state === "signed-out"
        ? "You have been signed out. Reload the page to sign in again."
        : `Connection lost. Showing data as of ${since}.`;
    if (shown && banner.textContent !== message) banner.textContent = message;
  }
  veil(old && lasting, since);
}

function toast(words: string): void {
  const box = document.querySelector(".toasts");
  if (!box) return;
  const line = document.createElement("p");
  line.textContent = words;
  box.replaceChildren(line);
  window.setTimeout(() => line.remove(), 6_000);
}

function listenForErrors(): void {
  let told = 0;
  document.body.addEventListener("htmx:responseError", (event) => {
    const { xhr } = (event as CustomEvent<{ xhr: XMLHttpRequest }>).detail;
    if (xhr.status === 401 || performance.now() - told < 10_000) return;
    told = performance.now();
    toast(`A part of this page could not be read again (${xhr.status}). What is shown may be old.`);
  });
}

function controls(): void {
  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element)) return;
    const opener = event.target.closest<HTMLElement>("[data-dialog]");
    if (opener) document.querySelector<HTMLDialogElement>(`#${opener.dataset.dialog}`)?.showModal();
    if (event.target.closest("[data-close]")) event.target.closest("dialog")?.close();
    if (event.target.closest("[data-print]")) window.print();
    if (event.target.closest("[data-keys-toggle]")) toggleKeys();
  });
  document.addEventListener("change", (event) => {
    if (event.target instanceof HTMLSelectElement && "submit" in event.target.dataset) {
      event.target.form?.submit();
    }
  });
}

function toggleKeys(): void {
  const form = document.querySelector<HTMLFormElement>("form.zone");
  if (!form) return;
  const field = document.createElement("input");
  field.type = "hidden";
  field.name = "keys";
  field.value = document.body.dataset.keys === "off" ? "on" : "off";
  form.append(field);
  form.submit();
}

function start(): void {
  const { topics = "", sequence = "0", now } = document.body.dataset;
  if (now) setServerNow(Number(now));
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const names = topics.split(" ").filter(Boolean);
  const live = new Live(
    `${scheme}://${location.host}/ws/live`,
    names,
    Number(sequence),
    showStatus,
  );
  useLive(live);
  customElements.define("time-ago", TimeAgo);
  customElements.define("run-clock", RunClock);
  customElements.define("live-region", LiveRegion);
  controls();
  listenForErrors();
  keyboard(() => live.togglePause());
}

start();
