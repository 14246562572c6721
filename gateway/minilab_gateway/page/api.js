// Requests to the gateway. A request has an Idempotency-Key, so its job goes on whatever cuts the connection off, and is
// found again by the same request, or by its id from any event on.

let key = "";
let onRefused = () => {};

export function useKey(given) {
  key = given;
}

export function whenKeyIsRefused(call) {
  onRefused = call;
}

const sentence = (text) => text.replace(/[^.!?]$/, "$&.");

export class ApiError extends Error {
  constructor(status, said, remedy = "") {
    super(remedy ? `${sentence(said)} ${remedy}` : said);
    this.status = status;
    this.said = sentence(said);
  }
}

function headers(more = {}) {
  return { ...(key ? { Authorization: `Bearer ${key}` } : {}), ...more };
}

const REMEDIES = {
  401: "Enter an API key above; `minilab-gateway key NAME` makes one.",
  413: "Send less at once, or start the gateway with a larger --max-body.",
  429: "Wait a moment and send it again.",
  503: "It is asked again by itself; see that Redis and a worker run.",
};

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  if (response.status === 401) onRefused();
  const said = body.error?.message ?? `The gateway answered ${response.status}.`;
  throw new ApiError(response.status, said, REMEDIES[response.status]);
}

async function send(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(options.headers) });
  } catch {
    throw new ApiError(0, "The gateway does not answer. Is it still running?");
  }
  return checked(response);
}

export const read = async (path) => (await send(path)).json();
export const blob = async (path) => (await send(path)).blob();
export const post = async (path, body) => (await send(path, body instanceof FormData
  ? { method: "POST", body }
  : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body ?? {}) })).json();

export const models = async () => (await read("v1/models")).data;
export const cancel = (path, id) => post(`${path}/${encodeURIComponent(id)}/cancel`);

const LONGEST_PAUSE = 5000;

// Follow one answer to its end, over any number of connections. `request` holds path, body and key, or path and id of an
// answer that is there; `onId(id)` gets its id once it is taken, `onEvent(chunk)` each event once, `onWaiting` why one
// waits and "" when that is over. Ends when `signal` aborts.
export async function follow(request, { onId = () => {}, onEvent, onWaiting, signal }) {
  let waits = false;
  const waiting = (text) => {
    if (text || waits) onWaiting(text);
    waits = text !== "";
  };
  try {
    await followed(request, { onId, onEvent, waiting, signal });
  } finally {
    waiting("");
  }
}

async function followed(request, { onId, onEvent, waiting, signal }) {
  let seen = ""; // the last event that is here, and the id of the answer
  let id = request.id ?? "";
  for (let pause = 250; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
    let because = "The connection was lost.";
    try {
      const response = await checked(await (seen || request.id ? rest(request, id, seen, signal) : asked(request, signal)));
      waiting("");
      id = response.headers.get("X-Completion-Id") ?? id;
      onId(id);
      for await (const event of events(response.body)) {
        if (event.data === "[DONE]") return;
        const chunk = JSON.parse(event.data);
        if (chunk.error) throw failed(chunk.error);
        if (event.id) seen = event.id;
        pause = 250;
        onEvent(chunk);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && ![429, 502, 503, 504].includes(error.status)) throw error;
      if (error instanceof ApiError) because = error.said;
    }
    if (signal.aborted) return;
    waiting(`${because} The answer is asked for again …`);
    await new Promise((done) => setTimeout(done, pause));
  }
}

// The error that ends a stream: a gateway that is shutting down is asked again.
function failed(error) {
  const status = error.code === "shutting_down" ? 503 : error.type === "invalid_request_error" ? 400 : 500;
  return new ApiError(status, error.message);
}

// Sent again, it attaches to the job that it started.
function asked(request, signal) {
  return fetch(request.path, {
    method: "POST",
    headers: headers({ "Content-Type": "application/json", "Idempotency-Key": request.key }),
    body: JSON.stringify(request.body),
    signal,
  });
}

function rest(request, id, seen, signal) {
  const query = new URLSearchParams({ stream: "true", ...(seen ? { starting_after: seen } : {}) });
  return fetch(`${request.path}/${encodeURIComponent(id)}?${query}`, { headers: headers(), signal });
}

// The events of a text/event-stream.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const event = { id: "", data: "" };
      for (const line of part.split(/\r?\n/)) {
        const [, name, given] = /^(id|data): ?(.*)$/.exec(line) ?? [];
        if (name) event[name] = event[name] ? `${event[name]}\n${given}` : given;
      }
      if (event.data) yield event;
    }
  }
}
