// Where tokens are read: what else was probable at one, by pointing, by touch and by the arrow keys; and the end of an
// answer that grows stays in sight for whoever is there.

import { element } from "./dom.js";

const HINT = "Point at a token, or press ← and → in the text, to see what else was probable.";
const probable = new WeakMap(); // token's element: [[text, logprob], ...], its own first

export function tell(span, { token, logprob, others }) {
  span.classList.add("token");
  const rest = others.filter((other) => other.token !== token).map((other) => [other.token, other.logprob]);
  probable.set(span, [...(probable.get(span) ?? []), [[token, logprob], ...rest]]);
}

const percent = (share) => (share < 0.0005 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`);
const share = ([token, logprob]) => `${JSON.stringify(token)} ${percent(Math.exp(logprob))}`;

export class Reading {
  constructor(place) {
    this.place = place;
    this.isAtEnd = true;
    this.top = 0; // where the text stood when it was last followed
    this.marked = null;
    this.told = element("p", { className: "probable", role: "status", textContent: HINT });
    place.after(this.told);
    place.addEventListener("scroll", () => {
      if (place.clientHeight) this.isAtEnd = this.#left() < 40;
    });
    for (const kind of ["pointerover", "click"]) {
      place.addEventListener(kind, ({ target }) => { if (probable.has(target)) this.mark(target); });
    }
    place.addEventListener("keydown", (event) => this.#step(event));
  }

  // Who reads further up is left there, also where the event of scrolling is still to come.
  follow() {
    if (this.place.clientHeight && this.place.scrollTop < this.top && this.#left() >= 40) this.isAtEnd = false;
    if (this.isAtEnd) this.place.scrollTop = this.place.scrollHeight;
    this.top = this.place.scrollTop;
  }

  #left() {
    return this.place.scrollHeight - this.place.scrollTop - this.place.clientHeight;
  }

  begin() {
    this.mark(null);
    this.isAtEnd = true;
    this.top = 0;
  }

  mark(token) {
    this.marked?.classList.remove("marked");
    this.marked = token;
    token?.classList.add("marked");
    if (!token) this.told.textContent = HINT;
    else {
      this.told.replaceChildren(...probable.get(token).map(([own, ...others]) =>
        element("span", {}, element("b", { textContent: share(own) }), ...others.map((other) => element("span", { textContent: share(other) })))));
    }
  }

  #step(event) {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") this.mark(null);
    if (!way || event.shiftKey || event.ctrlKey || event.altKey || event.metaKey) return;
    const tokens = [...this.place.querySelectorAll(".token")];
    if (!tokens.length) return;
    event.preventDefault();
    const at = tokens.indexOf(this.marked);
    const next = at < 0 ? (way > 0 ? 0 : tokens.length - 1) : Math.min(Math.max(at + way, 0), tokens.length - 1);
    this.mark(tokens[next]);
    tokens[next].scrollIntoView({ block: "nearest" });
  }
}
