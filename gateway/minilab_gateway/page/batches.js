// Batches: a file of requests goes up, files of answers come down.

import { blob, post, read } from "./api.js";
import { ago, count, element, find, notice, renew } from "./dom.js";
import { whileShown } from "./views.js";

const PAUSE = 2000;
const ENDED = ["completed", "failed", "expired", "cancelled"];
const STATES = { validating: "checked", in_progress: "running", finalizing: "finishing", completed: "done", cancelling: "stopping", cancelled: "stopped" };

let look;

export function beginBatches() {
  find("#upload").addEventListener("submit", upload);
  look = whileShown("batches", PAUSE, async () => {
    const { data } = await read("v1/batches?limit=50").catch((error) => {
      if (error.status === 404) throw new Error("This gateway offers no batches; use `minilab-client batch`.");
      throw error;
    });
    find("#batches .empty").hidden = data.length > 0;
    renew(find("#batches .rows"), data, (batch) => batch.id, made, update);
  });
}

async function upload(event) {
  event.preventDefault();
  const [file] = find("#batch-file").files;
  const button = find("#upload button");
  const form = new FormData();
  form.append("purpose", "batch");
  form.append("file", file, file.name);
  button.disabled = true;
  notice(`${file.name} is sent …`);
  try {
    const { id } = await post("v1/files", form);
    await post("v1/batches", { input_file_id: id, endpoint: find("#batch-endpoint").value, completion_window: "24h", metadata: { file: file.name.slice(0, 512) } });
    find("#upload").reset();
    notice(`The batch of ${file.name} has begun. It goes on without this page.`);
    look();
  } catch (error) {
    notice(error.message, true);
  } finally {
    button.disabled = false;
  }
}

function made(batch) {
  const row = element("li", { className: "batch" },
    element("span", { className: "state" }),
    element("span", { className: "open" }, element("span", { className: "what", textContent: batch.metadata?.file ?? batch.id }), element("span", { className: "detail" })),
    element("progress", { "aria-label": `Requests of ${batch.metadata?.file ?? batch.id}` }),
    element("span", { className: "tokens" }),
    element("span", { className: "buttons" }));
  const errors = element("p", { className: "errors", hidden: true });
  row.append(errors);
  return row;
}

function update(row, batch) {
  const { total = 0, completed = 0, failed = 0 } = batch.request_counts ?? {};
  row.className = `batch ${batch.status}`;
  find(".state", row).textContent = STATES[batch.status] ?? batch.status;
  find(".detail", row).textContent = `${batch.endpoint} · ${ago(1000 * batch.created_at)}`;
  const bar = find("progress", row);
  bar.hidden = ENDED.includes(batch.status);
  if (total) Object.assign(bar, { max: total, value: completed + failed });
  else bar.removeAttribute("value");
  find(".tokens", row).textContent = !total && ENDED.includes(batch.status) ? "" : `${count(completed)} of ${count(total)} answered${failed ? `, ${count(failed)} failed` : ""}`;
  const errors = (batch.errors?.data ?? []).map(({ line, message }) => (line ? `Line ${line}: ${message}` : message));
  find(".errors", row).textContent = errors.join("\n");
  find(".errors", row).hidden = !errors.length;
  const wanted = [
    batch.output_file_id && ["Answers", () => download(batch.output_file_id, "answers.jsonl")],
    batch.error_file_id && ["Errors", () => download(batch.error_file_id, "errors.jsonl")],
    !ENDED.includes(batch.status) && batch.status !== "cancelling" && ["Stop", () => stop(batch.id)],
  ].filter(Boolean);
  const place = find(".buttons", row);
  if ([...place.children].map((button) => button.textContent).join() === wanted.map(([label]) => label).join()) return;
  place.replaceChildren(...wanted.map(([label, act]) => {
    const button = element("button", { type: "button", textContent: label });
    button.addEventListener("click", () => act().catch((error) => notice(error.message, true)));
    return button;
  }));
}

async function stop(id) {
  await post(`v1/batches/${encodeURIComponent(id)}/cancel`);
  look();
}

async function download(id, name) {
  const url = URL.createObjectURL(await blob(`v1/files/${encodeURIComponent(id)}/content`));
  element("a", { href: url, download: `${id}-${name}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
