// What the tab keeps: turns of the chat, the completion, the settings. Never the key.

export const kept = JSON.parse(sessionStorage.getItem("minilab") ?? "{}");
kept.turns ??= []; // of the chat: {said} by the user, {request, text, done} of the model
kept.settings ??= {};
kept.asked ??= {}; // id of an answer: how what was asked begins, for the list of jobs

const MOST_ASKED = 100;

export function noteAsked(id, body) {
  if (id in kept.asked) return;
  const text = body.prompt ?? body.messages.at(-1).content;
  kept.asked[id] = text.slice(0, 120);
  for (const oldest of Object.keys(kept.asked).slice(0, -MOST_ASKED)) delete kept.asked[oldest];
}

export const keep = () => sessionStorage.setItem("minilab", JSON.stringify(kept));
