// Which view is shown, and what is asked again and again while it is.

import { find, notice } from "./dom.js";

export const VIEWS = ["chat", "completion", "jobs", "batches", "workers"];
const onShown = new Map();
let current = "";

export const shownView = () => current;

export function show(view, { focus = false } = {}) {
  if (current && current !== view && find("#key-field").hidden) notice("");
  current = VIEWS.includes(view) ? view : "completion";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== current;
  const writes = current === "chat" || current === "completion";
  find("#settings-panel").hidden = !writes;
  find("main").classList.toggle("writes", writes);
  document.title = `${find(`nav a[data-view=${current}]`).textContent} · MiniLab Gen`;
  if (focus) find(`#${current} h2`).focus({ preventScroll: true });
  for (const begin of onShown.get(current) ?? []) begin();
}

// Call `look` at once and then every so many milliseconds, only while the view and the page can be seen. It returns
// whether it has anything more to look for.
export function whileShown(view, pause, look) {
  let timer = null;
  let looking = false;
  let hasFailed = false;
  const isSeen = () => current === view && document.visibilityState === "visible";
  async function again() {
    clearTimeout(timer);
    if (looking || !isSeen()) return;
    looking = true;
    try {
      await look();
      if (hasFailed) notice("");
      hasFailed = false;
    } catch (error) {
      hasFailed = true;
      notice(error.message, true);
    } finally {
      looking = false;
    }
    clearTimeout(timer);
    if (isSeen()) timer = setTimeout(again, pause);
  }
  onShown.set(view, [...(onShown.get(view) ?? []), again]);
  document.addEventListener("visibilitychange", again);
  return again;
}
