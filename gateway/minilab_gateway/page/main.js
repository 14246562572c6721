// The page: its views, the models that can be asked, and the key. What is under way is kept in the tab's session storage,
// so a reload asks for the same answers again, from their first token on, and goes on with them.

import { models, useKey, whenKeyIsRefused } from "./api.js";
import { beginBatches } from "./batches.js";
import { find, notice } from "./dom.js";
import { beginJobs } from "./jobs.js";
import { build } from "./settings.js";
import { keep, kept } from "./session.js";
import { show } from "./views.js";
import { beginWorkers } from "./workers.js";
import { beginWriting } from "./writing.js";

const AGAIN = 2000; // milliseconds until models are asked for again, where none is there
const EMPTY_CHAT = find("#chat-empty").textContent;
const WIDE = matchMedia("(min-width: 60rem)");

whenKeyIsRefused(() => {
  find("#key-field").hidden = false;
  notice("This gateway asks for an API key.", true);
});

let known = [];

// Says where a chat cannot be had before one tries.
function chooseModel() {
  const name = find("#model").value;
  const cannot = known.some((model) => model.id === name && model.chat === false);
  find("#chat-empty").textContent = cannot
    ? `The model ${name} has no chat template, so it cannot chat. Use Completion, or choose another model.` : EMPTY_CHAT;
}

async function listModels() {
  try {
    const found = known = await models();
    const list = find("#model");
    const chosen = list.value || kept.model;
    list.replaceChildren(...found.map(({ id }) => new Option(id, id, false, id === chosen)));
    chooseModel();
    notice(found.length ? "" : "No worker serves a model yet; start one with `minilab-worker`.");
    if (!found.length) setTimeout(listModels, AGAIN);
    else if (!location.hash) show(found.find(({ id }) => id === list.value)?.chat ? "chat" : "completion");
  } catch (error) {
    if (error.status === 401) return;
    notice(error.message, true);
    setTimeout(listModels, AGAIN);
  }
}

find("#key").addEventListener("change", () => {
  useKey(find("#key").value); // kept no longer than the page
  listModels();
});
find("#model").addEventListener("change", () => { kept.model = find("#model").value; keep(); chooseModel(); });
find("#settings-panel").open = WIDE.matches;
WIDE.addEventListener("change", () => { find("#settings-panel").open = WIDE.matches; });
build(find("#settings"), kept.settings, (settings) => { kept.settings = settings; keep(); });

beginJobs();
beginBatches();
beginWorkers();
window.addEventListener("hashchange", () => show(location.hash.slice(2), { focus: true })); // #/jobs
show(location.hash.slice(2) || "completion");
listModels();
beginWriting();
