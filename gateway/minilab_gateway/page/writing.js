// The two interfaces: a chat, and a text that goes on.

import { Answers } from "./answer.js";
import { cancel, follow } from "./api.js";
import { asCurl, asPython } from "./copying.js";
import { element, find, notice } from "./dom.js";
import { keep, kept, noteAsked } from "./session.js";
import { given } from "./settings.js";

// One of the two: its form, and the answer that is under way.
class Side {
  constructor(section) {
    this.section = section;
    this.stop = find(".stop", section);
    this.stop.addEventListener("click", () => this.halt());
    this.running = null;
  }

  async run(turn, place) {
    const answers = new Answers(place);
    const aborting = new AbortController();
    this.running = { turn, aborting };
    this.stop.disabled = false;
    try {
      await follow(turn.request, (chunk) => {
        turn.id = chunk.id;
        noteAsked(turn.id, turn.request.body);
        const scrolls = place.parentElement;
        const isAtEnd = scrolls.scrollHeight - scrolls.scrollTop - scrolls.clientHeight < 40;
        answers.take(chunk);
        if (isAtEnd) scrolls.scrollTop = scrolls.scrollHeight; // who reads further up is left there
      }, notice, aborting.signal);
      if (turn.stopped || aborting.signal.aborted) answers.stopped();
    } catch (error) {
      answers.fail(error.message);
    } finally {
      turn.text = answers.text;
      turn.done = true;
      this.running = null;
      this.stop.disabled = true;
      keep();
    }
  }

  async halt() {
    const { turn, aborting } = this.running ?? {};
    if (turn) turn.stopped = true;
    if (turn?.id) await cancel(turn.request.path, turn.id).catch((error) => notice(error.message, true));
    else aborting?.abort();
  }
}

function requested(path, own) {
  const settings = given(find("#settings"), path.endsWith("chat/completions"));
  if (settings === null) return null;
  const model = find("#model").value;
  if (!model) {
    notice("No worker serves a model yet; start one with `minilab-worker`.", true);
    return null;
  }
  return {
    path,
    key: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`,
    body: { model, ...own, ...settings, stream: true },
  };
}

// The chat -------------------------------------------------------------------------------------------------------------

let chat;

function shown(role) {
  const text = element("div");
  find("#messages").append(element("li", { className: role.toLowerCase() }, element("b", { textContent: role }), text));
  find("#chat-empty").hidden = true;
  return text;
}

function said(text) {
  const place = shown("You");
  place.className = "text";
  place.textContent = text;
}

const conversation = () => kept.turns.map((turn) =>
  turn.said !== undefined ? { role: "user", content: turn.said } : { role: "assistant", content: turn.text });

const chatRequest = (text) =>
  requested("v1/chat/completions", { messages: [...conversation(), { role: "user", content: text }] });

async function say(event) {
  event.preventDefault();
  const text = find("#message").value.trim();
  if (!text || chat.running) return;
  const request = chatRequest(text);
  if (request === null) return;
  find("#message").value = "";
  said(text);
  const turn = { request, text: "", done: false };
  kept.turns.push({ said: text }, turn);
  keep();
  await chat.run(turn, shown("Model"));
}

async function clear() {
  await chat.halt();
  kept.turns = [];
  keep();
  find("#messages").replaceChildren();
  find("#chat-empty").hidden = false;
  find("#message").focus();
}

// The completion -------------------------------------------------------------------------------------------------------

let completion;

const completionRequest = () => requested("v1/completions", { prompt: find("#prompt").value });

async function goOn(turn) {
  const place = element("div", {}, element("span", { className: "text prompt", textContent: turn.request.body.prompt }));
  find("#completion-empty").hidden = true;
  find("#answer").replaceChildren(place);
  await completion.run(turn, place);
}

async function submit(event) {
  event.preventDefault();
  if (completion.running) return;
  const request = completionRequest();
  if (request === null) return;
  kept.completion = { request, text: "", done: false };
  keep();
  await goOn(kept.completion);
}

// Both -----------------------------------------------------------------------------------------------------------------

function sendOn(form, field, isWanted) {
  find(field).addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing && isWanted(event)) {
      event.preventDefault();
      find(form).requestSubmit();
    }
  });
}

async function copy(button) {
  const request = button.closest("section").id === "chat" ? chatRequest(find("#message").value) : completionRequest();
  if (request === null) return;
  const text = button.dataset.as === "curl" ? asCurl(request, !find("#key-field").hidden) : asPython(request);
  try {
    await navigator.clipboard.writeText(text);
    notice("Copied.");
  } catch {
    notice("The browser lets a page copy only over HTTPS or from this machine.", true);
  }
}

export function beginWriting() {
  chat = new Side(find("#chat"));
  completion = new Side(find("#completion"));
  find("#say").addEventListener("submit", say);
  find("#go-on").addEventListener("submit", submit);
  find("#chat .clear").addEventListener("click", clear);
  sendOn("#say", "#message", (event) => !event.shiftKey);
  sendOn("#go-on", "#prompt", (event) => event.ctrlKey || event.metaKey);
  for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () => copy(button));
  for (const turn of kept.turns) { // what was under way when the page was left
    if (turn.said !== undefined) said(turn.said);
    else if (turn.done) shown("Model").append(element("span", { className: "text", textContent: turn.text }));
    else chat.run(turn, shown("Model"));
  }
  if (kept.completion) {
    find("#prompt").value = kept.completion.request.body.prompt;
    goOn(kept.completion);
  }
}
