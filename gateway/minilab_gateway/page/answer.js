// One answer as it grows: a span for each token, with its probability and what else was probable. Text of a model is
// text and never markup.

export class Answer {
  constructor(place) {
    this.text = document.createElement("span");
    this.text.className = "text";
    this.end = document.createElement("span");
    this.end.className = "end";
    place.append(this.text, " ", this.end);
  }

  add(text, logprobs) {
    const span = document.createElement("span");
    span.textContent = text;
    if (logprobs.length) {
      span.className = "token";
      span.tabIndex = -1;
      span.title = logprobs.map(described).join("\n");
    }
    this.text.append(span);
  }

  finish(reason) {
    this.end.textContent = reason ? `[${reason}]` : "";
  }

  fail(message) {
    this.end.className = "end failed";
    this.end.textContent = message;
  }
}

function described({ token, logprob, others }) {
  const share = (value) => `${(100 * Math.exp(value)).toFixed(1)} %`;
  const rest = others.filter((other) => other.token !== token).map((other) => `  ${JSON.stringify(other.token)} ${share(other.logprob)}`);
  return [`${JSON.stringify(token)} ${share(logprob)}`, ...rest].join("\n");
}

// Text and logprobs of a chunk, whichever of the two interfaces it is of.
export function taken(chunk) {
  const choice = chunk.choices?.[0];
  if (!choice) return { text: "", logprobs: [], reason: null };
  const text = choice.delta ? choice.delta.content ?? "" : choice.text ?? "";
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
