// The workers and queues as they stand, and how fast all of them were in the last minutes.

import { read } from "./api.js";
import { count, drawn, element, find, renew } from "./dom.js";
import { whileShown } from "./views.js";

const PAUSE = 1000;
const WINDOW = 180_000; // milliseconds that are plotted at most
const LEAST = 30_000; // and at least, where the first look was a moment ago
const GAP = 5000; // without a look for so long, the line is broken
const WIDTH = 600;
const HEIGHT = 120;

const samples = []; // [milliseconds, tokens per second]

export function beginWorkers() {
  const [workers, queues] = document.querySelectorAll("#workers .scrolls");
  whileShown("workers", PAUSE, async () => {
    const seen = await read("service");
    const up = seen.workers.filter((worker) => worker.state === "up");
    const speed = up.reduce((sum, worker) => sum + (worker.tokens_per_second ?? 0), 0);
    const now = Date.now();
    samples.push([now, speed]);
    while (samples[0][0] < now - WINDOW) samples.shift();
    find("#workers .empty").hidden = seen.workers.length > 0;
    find("#workers figure").hidden = seen.workers.length === 0 && samples.every(([, each]) => each === 0);
    workers.hidden = seen.workers.length === 0;
    queues.hidden = seen.models.length === 0;
    renew(find("tbody", workers), seen.workers, (worker) => worker.name, madeWorker, updateWorker);
    renew(find("tbody", queues), seen.models, (model) => model.id, madeQueue, updateQueue);
    const used = up.reduce((sum, worker) => sum + (worker.used ?? 0), 0);
    const slots = up.reduce((sum, worker) => sum + (worker.slots ?? 0), 0);
    const waiting = seen.models.reduce((sum, model) => sum + model.queued, 0);
    figures([["Workers up", up.length], ["Slots used", `${count(used)} of ${count(slots)}`], ["Jobs waiting", count(waiting)], ["Tokens per second", count(speed)]]);
    find("#workers .plot").replaceChildren(plot(now));
  });
}

function figures(pairs) {
  const place = find("#workers .figures");
  place.hidden = false;
  place.replaceChildren(...pairs.map(([name, value]) =>
    element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value }))));
}

function madeWorker() {
  const slots = element("td", {}, element("progress", {}), element("span"));
  return element("tr", {}, element("th", { scope: "row" }), element("td"), element("td"), slots, element("td", { className: "number" }), element("td", { className: "number" }));
}

function updateWorker(row, worker) {
  const [name, model, state, slots, speed, tokens] = row.children;
  name.textContent = worker.name;
  model.textContent = worker.model;
  state.textContent = worker.state === "up" ? "● up" : "○ lease expired";
  state.className = worker.state;
  const bar = find("progress", slots);
  bar.hidden = worker.slots === null;
  bar.setAttribute("aria-label", `Slots of ${worker.name}`);
  Object.assign(bar, { max: worker.slots ?? 1, value: worker.used ?? 0 });
  find("span", slots).textContent = worker.slots === null ? "–" : ` ${worker.used} / ${worker.slots}`;
  speed.textContent = count(worker.tokens_per_second);
  tokens.textContent = count(worker.tokens);
}

function madeQueue() {
  return element("tr", {}, element("th", { scope: "row" }), element("td", { className: "number" }), element("td", { className: "number" }));
}

function updateQueue(row, model) {
  row.children[0].textContent = model.id;
  row.children[1].textContent = count(model.queued);
  row.children[2].textContent = count(model.running);
}

// A line over the last minutes; where nobody looked there is none.
function plot(now) {
  const most = niceAbove(Math.max(1, ...samples.map(([, speed]) => speed)));
  const span = Math.max(LEAST, now - samples[0][0]);
  const at = ([time, speed]) => `${(WIDTH * (1 - (now - time) / span)).toFixed(1)},${(HEIGHT * (1 - speed / most)).toFixed(1)}`;
  const lines = [[]];
  samples.forEach((sample, index) => {
    if (index && sample[0] - samples[index - 1][0] > GAP) lines.push([]);
    lines.at(-1).push(at(sample));
  });
  const speed = count(samples.at(-1)?.[1] ?? 0);
  return element("div", { className: "axes" },
    element("span", { className: "most", textContent: count(most) }),
    drawn("svg", { viewBox: `0 -3 ${WIDTH} ${HEIGHT + 6}`, preserveAspectRatio: "none", role: "img", "aria-label": `${speed} tokens per second now, the scale ends at ${count(most)}` },
      drawn("line", { x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT, class: "axis" }),
      drawn("line", { x1: 0, x2: WIDTH, y1: 0, y2: 0, class: "axis" }),
      ...lines.map((points) => drawn("polyline", { points: points.join(" "), class: "speed" }))),
    element("span", { className: "least", textContent: "0" }),
    element("div", { className: "times" }, element("span", { textContent: `${Math.round(span / 1000)} s ago` }), element("span", { textContent: "now" })));
}

function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}
