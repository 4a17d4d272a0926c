// Keys for getting around. None of them acts on hardware, and all can be switched off.

let pending = "";

function typing(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement && target.matches("input, textarea, select, [contenteditable]")
  );
}

function moveRow(step: number): void {
  const links = [
    ...document.querySelectorAll<HTMLElement>("tr[data-row] a, .jobs-table tbody a.name"),
  ];
  if (!links.length) return;
  const index = links.indexOf(document.activeElement as HTMLElement);
  const next = index < 0 ? (step > 0 ? 0 : links.length - 1) : index + step;
  links[Math.min(Math.max(next, 0), links.length - 1)]?.focus();
}

/** `pause` is called for the key that pauses live updates. */
export function keyboard(pause: () => void): void {
  document.addEventListener("keydown", (event) => {
    if (document.body.dataset.keys === "off" || event.ctrlKey || event.metaKey || event.altKey)
      return;
    if (typing(event.target) || document.querySelector("dialog[open]")) return;
    const key = event.key;
    if (pending === "g") {
      pending = "";
      document.querySelector<HTMLAnchorElement>(`.menu a[data-key="${CSS.escape(key)}"]`)?.click();
      return;
    }
    const shortcut = document.querySelector<HTMLAnchorElement>(
      `[data-shortcut="${CSS.escape(key)}"]`,
    );
    if (key === "g") {
      pending = "g";
      window.setTimeout(() => {
        pending = "";
      }, 1000);
    } else if (key === "/") {
      event.preventDefault();
      document.querySelector<HTMLInputElement>("#search")?.focus();
    } else if (key === "?") document.querySelector<HTMLDialogElement>("#shortcuts")?.showModal();
    else if (key === "j") moveRow(1);
    else if (key === "k") moveRow(-1);
    else if (key === ".") pause();
    else if (shortcut) shortcut.click();
  });
}
