// Requests to the gateway. A request has an Idempotency-Key, so its job goes on whatever cuts the connection off, and is
// found again by the same request, or by its id from any event on.

let key = "";

export function useKey(given) {
  key = given;
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(more = {}) {
  return { ...(key ? { Authorization: `Bearer ${key}` } : {}), ...more };
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ApiError(response.status, body.error?.message ?? `the gateway answered ${response.status}`);
}

export async function models() {
  const response = await checked(await fetch("v1/models", { headers: headers() }));
  return (await response.json()).data.map((model) => model.id);
}

export async function cancel(path, id) {
  await checked(await fetch(`${path}/${encodeURIComponent(id)}/cancel`, { method: "POST", headers: headers() }));
}

const LONGEST_PAUSE = 5000;

// Follow one answer to its end, over any number of connections. `request` holds path, body and key; `onEvent(chunk)`
// gets each event once. Ends when `signal` aborts.
export async function follow(request, onEvent, onWaiting, signal) {
  let seen = ""; // the last event that is here, and the id of the answer
  let id = "";
  for (let pause = 250; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
    try {
      const response = await checked(await (seen ? rest(request, id, seen, signal) : asked(request, signal)));
      onWaiting("");
      for await (const event of events(response.body)) {
        if (event.data === "[DONE]") return;
        const chunk = JSON.parse(event.data);
        if (chunk.error) throw new ApiError(500, chunk.error.message);
        id = chunk.id;
        if (event.id) seen = event.id;
        pause = 250;
        onEvent(chunk);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && ![429, 502, 503, 504].includes(error.status)) throw error;
    }
    if (signal.aborted) return;
    onWaiting("The connection was lost. The answer goes on; it is asked for again …");
    await new Promise((done) => setTimeout(done, pause));
  }
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
  const query = new URLSearchParams({ stream: "true", starting_after: seen });
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
