// The two interfaces: a chat, and a text that goes on.

import { asCurl, asPython } from "./copying.js";
import { element, find, notice } from "./dom.js";
import { keep, kept } from "./session.js";
import { given } from "./settings.js";
import { Side } from "./side.js";

const BUSY = "The answer is still coming; Stop ends it.";

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

// What was refused, and so has no answer, is no part of the conversation.
function conversation() {
  const turns = kept.turns.filter((turn, at) => !(turn.failed && !turn.text) && !(kept.turns[at + 1]?.failed && !kept.turns[at + 1].text));
  return turns.map((turn) => (turn.said !== undefined ? { role: "user", content: turn.said } : { role: "assistant", content: turn.text }));
}

const chatRequest = (text) =>
  requested("v1/chat/completions", { messages: [...conversation(), { role: "user", content: text }] });

async function say(event) {
  event.preventDefault();
  const text = find("#message").value.trim();
  if (!text) return;
  if (chat.isRunning) return notice(BUSY);
  const request = chatRequest(text);
  if (request === null) return;
  fill("message", "");
  said(text);
  const turn = { request, text: "", done: false };
  kept.turns.push({ said: text }, turn);
  keep();
  chat.reading.begin();
  await chat.run(turn, shown("Model"));
  if (kept.turns.includes(turn) && turn.failed && !turn.text && !find("#message").value) fill("message", text); // to be sent otherwise
}

function clear() {
  chat.leave();
  kept.turns = [];
  keep();
  find("#messages").replaceChildren();
  chat.reading.begin();
  find("#chat-empty").hidden = false;
  find("#message").focus();
}

function restored(turn) {
  if (turn.said !== undefined) said(turn.said);
  else if (!turn.done) chat.run(turn, shown("Model"));
  else {
    shown("Model").append(element("span", { className: "text", textContent: turn.text }), " ",
      element("span", { className: turn.failed ? "end failed" : "end", textContent: turn.failed ?? "" }));
  }
}

// The completion -------------------------------------------------------------------------------------------------------

let completion;

const completionRequest = () => requested("v1/completions", { prompt: find("#prompt").value });

async function goOn(turn) {
  const place = element("div", {}, element("span", { className: "text prompt", textContent: turn.request.body.prompt }));
  find("#completion-empty").hidden = true;
  find("#answer").replaceChildren(place);
  completion.reading.begin();
  await completion.run(turn, place);
}

async function submit(event) {
  event.preventDefault();
  if (completion.isRunning) return notice(BUSY);
  const request = completionRequest();
  if (request === null) return;
  kept.completion = { request, text: "", done: false };
  keep();
  await goOn(kept.completion);
}

// Both -----------------------------------------------------------------------------------------------------------------

function fill(id, text) {
  find(`#${id}`).value = kept.typed[id] = text;
}

function field(id, form, isWanted) {
  const input = find(`#${id}`);
  input.value = kept.typed[id] ?? "";
  input.addEventListener("input", () => { kept.typed[id] = input.value; });
  input.addEventListener("change", keep);
  input.addEventListener("keydown", (event) => {
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

// Where a model cannot chat, one is told so before one tries, and the completion has the room.
export function chooseModel(model) {
  const cannot = model?.chat === false;
  find("#chat").classList.toggle("cannot", cannot && !kept.turns.length);
  find("#chat-cannot").hidden = !cannot;
  find("#chat-cannot").textContent = cannot ? `The model ${model.id} has no chat template: it goes on with texts, and does not chat.` : "";
  find("#chat-empty").hidden = cannot || kept.turns.length > 0;
}

export function beginWriting() {
  chat = new Side(find("#chat"), find("#messages"));
  completion = new Side(find("#completion"), find("#answer"));
  find("#say").addEventListener("submit", say);
  find("#go-on").addEventListener("submit", submit);
  find("#chat .clear").addEventListener("click", clear);
  field("message", "#say", (event) => !event.shiftKey);
  field("prompt", "#go-on", (event) => event.ctrlKey || event.metaKey);
  window.addEventListener("pagehide", keep);
  for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () => copy(button));
  for (const turn of kept.turns) restored(turn); // what was under way when the page was left
  if (kept.completion) goOn(kept.completion);
}
