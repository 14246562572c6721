// Answers as they grow: a span for each token, with its probability and what else was probable. Text of a model is text
// and never markup.

import { element } from "./dom.js";
import { tell } from "./tokens.js";

// All choices of one request; one alone has no heading.
export class Answers {
  constructor(place) {
    this.place = place;
    this.choices = new Map();
    this.isStopping = false;
  }

  stopping() {
    this.isStopping = true;
    this.say("stopping …");
  }

  take(chunk) {
    for (const choice of chunk.choices ?? []) {
      const { text, logprobs, reason } = taken(choice);
      const answer = this.#of(choice.index ?? 0);
      if (text || logprobs.length) {
        answer.add(text, logprobs);
        if (!this.isStopping) answer.say("");
      }
      if (reason) answer.finish(choice.stop_reason === "cancelled" ? "stopped" : choice.stop_reason === "timeout" ? "timeout" : reason);
    }
  }

  get text() {
    return this.#of(0).text.textContent;
  }

  // Of all that have not ended.
  say(reason) {
    for (const answer of this.#all()) if (!answer.hasEnded) answer.say(reason);
  }

  fail(message) {
    this.#all().at(-1).fail(message);
  }

  #all() {
    if (!this.choices.size) this.#of(0);
    return [...this.choices.values()];
  }

  #of(index) {
    if (!this.choices.has(index)) {
      const first = this.choices.get(0);
      if (index === 0) this.choices.set(0, new Answer(this.place));
      else {
        if (!first) this.#of(0);
        const place = element("div", { className: "choice" }, element("b", { textContent: `Answer ${index + 1}` }));
        this.place.append(place);
        this.choices.set(index, new Answer(place));
      }
    }
    return this.choices.get(index);
  }
}

export class Answer {
  constructor(place) {
    this.text = element("span", { className: "text" });
    this.end = element("span", { className: "end" });
    this.hasEnded = false;
    place.append(this.text, " ", this.end);
  }

  add(text, logprobs) {
    const span = element("span", { textContent: text });
    for (const each of logprobs) tell(span, each);
    this.text.append(span);
  }

  finish(reason) {
    this.say(reason);
    this.hasEnded = true;
  }

  say(reason) {
    this.end.textContent = reason ? `[${reason}]` : "";
  }

  fail(message) {
    this.end.className = "end failed";
    this.end.textContent = message;
  }
}

// Text and logprobs of a choice, whichever of the two interfaces it is of.
function taken(choice) {
  const calls = (choice.delta?.tool_calls ?? []).map((call) =>
    `${call.function?.name ? `\n${call.function.name} ` : ""}${call.function?.arguments ?? ""}`);
  const text = choice.delta ? [choice.delta.content ?? "", ...calls].join("") : choice.text ?? "";
  return { text, logprobs: listed(choice.logprobs), reason: choice.finish_reason ?? null };
}

function listed(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) {
    return logprobs.content.map(({ token, logprob, top_logprobs }) => ({ token, logprob, others: top_logprobs ?? [] }));
  }
  return (logprobs.tokens ?? []).map((token, at) => ({
    token,
    logprob: logprobs.token_logprobs[at],
    others: Object.entries(logprobs.top_logprobs?.[at] ?? {}).map(([other, logprob]) => ({ token: other, logprob })),
  }));
}
