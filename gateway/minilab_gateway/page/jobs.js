// The newest answers of this key, how far they are, and one of them opened.

import { Answers } from "./answer.js";
import { cancel, follow, read } from "./api.js";
import { ago, count, element, find, notice, renew } from "./dom.js";
import { kept } from "./session.js";
import { Reading } from "./tokens.js";
import { shownView, whileShown } from "./views.js";

const PAUSE = 1000;
const PATHS = { text: "v1/completions", chat: "v1/chat/completions" };
const ROUTES = { text: "Completion", chat: "Chat", response: "Response" };
const STATES = { queued: "waiting", started: "running", finished: "done", failed: "failed", cancelled: "stopped" };
const isUnderWay = (job) => job.state === "queued" || job.state === "started";

let opening = null;
let look;
let reading;

export function beginJobs() {
  reading = new Reading(find("#opened .answer"));
  find("#opened .close").addEventListener("click", close);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && shownView() === "jobs" && !find("#opened").hidden) close();
  });
  look = whileShown("jobs", PAUSE, async () => {
    const { data } = await read("service/jobs?limit=50");
    find("#jobs .empty").hidden = data.length > 0;
    renew(find("#jobs .rows"), data, (job) => job.id, made, update);
  });
}

function made(job) {
  const open = element("button", { type: "button", className: "open", title: job.id },
    element("span", { className: "what", textContent: kept.asked[job.id] ?? job.id }),
    element("span", { className: "detail" }));
  open.addEventListener("click", () => openAnswer(job));
  const stop = element("button", { type: "button", className: "stop", textContent: "Stop", "aria-label": `Stop ${job.id}` });
  stop.addEventListener("click", async () => {
    stop.disabled = true;
    await cancel(PATHS[job.route], job.id).catch((error) => notice(error.message, true));
    look();
  });
  return element("li", {}, element("span", { className: "state" }), open,
    element("progress", { "aria-label": `Tokens of ${job.id}` }), element("span", { className: "tokens" }), stop);
}

function update(row, job) {
  row.className = `job ${job.state}`;
  find(".state", row).textContent = STATES[job.state] ?? job.state;
  const answers = job.answers > 1 ? ` · ${job.answers} answers` : "";
  find(".detail", row).textContent = `${ROUTES[job.route] ?? job.route} · ${job.model} · ${ago(Date.parse(job.created))}${answers}${job.end ? ` · ${job.end}` : ""}`;
  const bar = find("progress", row);
  bar.hidden = !isUnderWay(job) || !job.max_tokens;
  if (job.max_tokens) Object.assign(bar, { max: job.max_tokens, value: job.tokens });
  const most = job.max_tokens && isUnderWay(job) ? ` of ${count(job.max_tokens)}` : "";
  find(".tokens", row).textContent = `${count(job.tokens)}${most} tokens`;
  find(".stop", row).hidden = !isUnderWay(job) || !(job.route in PATHS);
}

async function openAnswer(job) {
  opening?.abort();
  const aborting = opening = new AbortController();
  find("#opened").hidden = false;
  find("#opened-title").textContent = kept.asked[job.id] ?? `Answer ${job.id}`;
  const place = element("div");
  find("#opened .answer").replaceChildren(place);
  find("#opened-title").focus();
  const answers = new Answers(place);
  reading.begin();
  const onEvent = (chunk) => {
    answers.take(chunk);
    reading.follow();
  };
  try {
    if (job.route === "response") answers.take(await wholeResponse(job.id));
    else await follow({ path: PATHS[job.route], id: job.id }, { onEvent, onWaiting: notice, signal: aborting.signal });
  } catch (error) {
    answers.fail(error.message);
  }
}

// A response as it stands, as if it were a chunk.
async function wholeResponse(id) {
  const { output, status } = await read(`v1/responses/${encodeURIComponent(id)}`);
  const parts = (output ?? []).flatMap((item) => item.content ?? [{ text: `\n${item.name ?? item.type} ${item.arguments ?? ""}` }]);
  return { choices: [{ text: parts.map((part) => part.text ?? "").join(""), finish_reason: status }] };
}

function close() {
  opening?.abort();
  find("#opened").hidden = true;
  find("#jobs h2").focus();
}
