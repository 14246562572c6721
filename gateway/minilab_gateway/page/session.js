// What the tab keeps: turns of the chat, the completion, what is being typed, the settings. Never the key.

import { notice } from "./dom.js";

export const kept = JSON.parse(sessionStorage.getItem("minilab") ?? "{}");
kept.turns ??= []; // of the chat: {said} by the user, then of the model {request, id, stopped} or {text, done, failed}
kept.typed ??= {}; // id of a field: what stands in it
kept.settings ??= {};
kept.asked ??= {}; // id of an answer: how what was asked begins, for the list of jobs

const MOST_ASKED = 100;

export function noteAsked(id, body) {
  if (id in kept.asked) return;
  const text = body.prompt ?? body.messages.at(-1).content;
  kept.asked[id] = text.slice(0, 120);
  for (const oldest of Object.keys(kept.asked).slice(0, -MOST_ASKED)) delete kept.asked[oldest];
}

// Where a browser has no room for more, the page works on, and says what that costs.
export function keep() {
  try {
    sessionStorage.setItem("minilab", JSON.stringify(kept));
  } catch {
    notice("This tab has no room to keep so much text: a reload of the page would lose it. The answers stay under Jobs.", true);
  }
}
