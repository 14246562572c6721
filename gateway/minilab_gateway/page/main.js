// The page: two interfaces side by side. What is under way is kept in the tab's session storage, so a reload asks for
// the same answers again, from their first token on, and goes on with them.

import { ApiError, cancel, follow, models, useKey } from "./api.js";
import { Answer, taken } from "./answer.js";
import { asCurl, asPython } from "./copying.js";
import { build, given } from "./settings.js";

const LOGPROBS = 3;
const find = (selector, within = document) => within.querySelector(selector);
const notice = (text) => { find("#notice").textContent = text; };

const kept = JSON.parse(sessionStorage.getItem("minilab") ?? "{}");
kept.turns ??= []; // of the chat: {said} by the user, {request, text, done} of the model
kept.settings ??= {};
const keep = () => sessionStorage.setItem("minilab", JSON.stringify(kept));

// One of the two interfaces: its form, and the answer that is under way.
class Side {
  constructor(section) {
    this.section = section;
    this.stop = find(".stop", section);
    this.stop.addEventListener("click", () => this.halt());
    this.running = null;
  }

  async run(turn, place) {
    const answer = new Answer(place);
    const aborting = new AbortController();
    this.running = { turn, aborting };
    this.stop.disabled = false;
    turn.text = "";
    let last = null;
    try {
      await follow(turn.request, (chunk) => {
        const { text, logprobs, reason } = taken(chunk);
        turn.id = chunk.id;
        turn.text += text;
        if (text || logprobs.length) answer.add(text, logprobs);
        last = reason ?? last;
        place.parentElement.scrollTop = place.parentElement.scrollHeight;
      }, notice, aborting.signal);
      answer.finish(turn.stopped || aborting.signal.aborted ? "stopped" : last);
    } catch (error) {
      answer.fail(error.message);
      if (error instanceof ApiError && error.status === 401) askForKey();
    } finally {
      turn.done = true;
      this.running = null;
      this.stop.disabled = true;
      keep();
    }
  }

  async halt() {
    const { turn, aborting } = this.running ?? {};
    if (turn) turn.stopped = true;
    if (turn?.id) await cancel(turn.request.path, turn.id).catch((error) => notice(error.message));
    else aborting?.abort();
  }
}

function requested(path, own) {
  const settings = given(find("#settings"));
  if (settings === null) return null;
  const logprobs = path.endsWith("chat/completions") ? { logprobs: true, top_logprobs: LOGPROBS } : { logprobs: LOGPROBS };
  return {
    path,
    key: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`,
    body: { model: find("#model").value, ...own, ...settings, ...logprobs, stream: true },
  };
}

// The chat -------------------------------------------------------------------------------------------------------------

const chat = new Side(find("#chat"));

function shown(role) {
  const item = document.createElement("li");
  const who = document.createElement("b");
  const text = document.createElement("div");
  who.textContent = role;
  item.append(who, text);
  find("#messages").append(item);
  return text;
}

function said(text) {
  const place = shown("You");
  place.className = "text";
  place.textContent = text;
}

const conversation = () => kept.turns.map((turn) =>
  turn.said !== undefined ? { role: "user", content: turn.said } : { role: "assistant", content: turn.text });

find("#say").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = find("#message").value.trim();
  if (!text || chat.running) return;
  const request = requested("v1/chat/completions", { messages: [...conversation(), { role: "user", content: text }] });
  if (request === null) return;
  find("#message").value = "";
  said(text);
  const turn = { request, text: "", done: false };
  kept.turns.push({ said: text }, turn);
  keep();
  await chat.run(turn, shown("Model"));
});
find("#message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    find("#say").requestSubmit();
  }
});
find("#chat .clear").addEventListener("click", async () => {
  await chat.halt();
  kept.turns = [];
  keep();
  find("#messages").replaceChildren();
});

// The completion -------------------------------------------------------------------------------------------------------

const completion = new Side(find("#completion"));

async function goOn(turn) {
  const place = document.createElement("div");
  const prompt = document.createElement("span");
  prompt.className = "text";
  prompt.textContent = turn.request.body.prompt;
  place.append(prompt);
  find("#answer").replaceChildren(place);
  await completion.run(turn, place);
}

find("#go-on").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (completion.running) return;
  const request = requested("v1/completions", { prompt: find("#prompt").value });
  if (request === null) return;
  kept.completion = { request, text: "", done: false };
  keep();
  await goOn(kept.completion);
});

// All the rest ---------------------------------------------------------------------------------------------------------

function askForKey() {
  find("#key-field").hidden = false;
  notice("This gateway asks for an API key.");
}

const AGAIN = 2000; // milliseconds until models are asked for again, where none is there

async function listModels() {
  try {
    const names = await models();
    const list = find("#model");
    const chosen = list.value || kept.model;
    list.replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
    notice(names.length ? "" : "No worker serves a model yet.");
    if (!names.length) setTimeout(listModels, AGAIN);
  } catch (error) {
    if (error.status === 401) return askForKey();
    notice(error instanceof ApiError ? error.message : "The gateway does not answer.");
    setTimeout(listModels, AGAIN);
  }
}

for (const button of document.querySelectorAll("nav button")) {
  button.addEventListener("click", () => show(button.dataset.view));
}
function show(view) {
  for (const button of document.querySelectorAll("nav button")) button.setAttribute("aria-pressed", button.dataset.view === view);
  for (const section of document.querySelectorAll("main > section")) section.classList.toggle("shown", section.id === view);
}

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const ofChat = button.closest("section").id === "chat";
    const request = ofChat
      ? requested("v1/chat/completions", { messages: [...conversation(), { role: "user", content: find("#message").value }] })
      : requested("v1/completions", { prompt: find("#prompt").value });
    if (request === null) return;
    const text = button.dataset.as === "curl" ? asCurl(request, !find("#key-field").hidden) : asPython(request);
    await navigator.clipboard.writeText(text);
    notice("Copied.");
  });
}

find("#key").addEventListener("change", () => {
  useKey(find("#key").value); // kept no longer than the page
  listModels();
});
find("#model").addEventListener("change", () => { kept.model = find("#model").value; keep(); });
build(find("#settings"), kept.settings, (settings) => { kept.settings = settings; keep(); });
show("chat");
listModels();

// What was under way when the page was left.
for (const turn of kept.turns) {
  if (turn.said !== undefined) said(turn.said);
  else if (turn.done) new Answer(shown("Model")).add(turn.text, []);
  else chat.run(turn, shown("Model"));
}
if (kept.completion) {
  find("#prompt").value = kept.completion.request.body.prompt;
  goOn(kept.completion);
}
