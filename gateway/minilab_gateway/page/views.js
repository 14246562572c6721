// Which view is shown, and what is asked again and again while it is. A chat and a completion are one view on a wide
// screen, side by side, and two on a narrow one.

import { find, notice } from "./dom.js";

const SIDES = ["chat", "completion"];
const VIEWS = ["write", ...SIDES, "jobs", "batches", "workers"];
const TWO = matchMedia("(min-width: 1100px)"); // as in style.css
const onShown = new Map();
let current = "";
let side = "completion"; // the one that is shown alone, and that was used last

export const shownView = () => current;

export function beginViews() {
  for (const link of document.querySelectorAll("nav a")) { // a view whose address is there already is shown, too
    link.addEventListener("click", () => { if (link.hash === location.hash) show(link.dataset.view, { focus: true }); });
  }
  for (const each of SIDES) find(`#${each}`).addEventListener("focusin", () => { side = each; });
  window.addEventListener("hashchange", () => show(location.hash.slice(2), { focus: true })); // #/jobs
  TWO.addEventListener("change", layOut);
}

export function show(view, { focus = false } = {}) {
  const before = current;
  current = VIEWS.includes(view) ? view : "write";
  if (SIDES.includes(current)) [side, current] = [current, "write"];
  if (before && before !== current && find("#key-field").hidden) notice("");
  layOut();
  if (focus) find(`#${current === "write" ? side : current} h2`).focus({ preventScroll: true });
}

function layOut() {
  const writes = current === "write";
  const shown = !writes ? [current] : TWO.matches ? SIDES : [side];
  const named = writes && !TWO.matches ? side : current;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === named) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const section of document.querySelectorAll("main > section")) section.hidden = !shown.includes(section.id);
  find("#settings-panel").hidden = !writes;
  find("main").classList.toggle("writes", writes);
  document.title = `${find(`nav a[data-view=${named}]`).textContent} · MiniLab Gen`;
  for (const each of shown) for (const begin of onShown.get(each) ?? []) begin();
}

export function whenShown(view, call) {
  onShown.set(view, [...(onShown.get(view) ?? []), call]);
}

// Call `look` at once and then every so many milliseconds, only while the view and the page can be seen.
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
  whenShown(view, again);
  document.addEventListener("visibilitychange", again);
  return again;
}
