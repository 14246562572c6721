// The page: its views, the models that can be asked, and the key. What is under way is kept in the tab's session storage,
// so a reload asks for the same answers again, from their first token on, and goes on with them.

import { models, useKey, whenKeyIsRefused } from "./api.js";
import { beginBatches } from "./batches.js";
import { find, notice } from "./dom.js";
import { beginJobs } from "./jobs.js";
import { build } from "./settings.js";
import { keep, kept } from "./session.js";
import { beginViews, show } from "./views.js";
import { beginWorkers } from "./workers.js";
import { beginWriting, chooseModel } from "./writing.js";

const AGAIN = 2000; // milliseconds until models are asked for again, where none is there
const LATER = 5000; // and where some are: a worker may come with another
const WIDE = matchMedia("(min-width: 60rem)");

let known = [];
let timer;
let hasSaid = false;

whenKeyIsRefused(() => {
  find("#key-field").hidden = false;
  notice("This gateway asks for an API key.", true);
  hasSaid = true;
});

const chosen = () => known.find((model) => model.id === find("#model").value);

async function listModels() {
  clearTimeout(timer);
  if (document.visibilityState !== "visible") return;
  try {
    offer(await models());
    say("");
  } catch (error) {
    if (error.status === 401) return; // until a key is entered
    if (!known.length) say(error.message, true);
  }
  clearTimeout(timer);
  timer = setTimeout(listModels, known.length ? LATER : AGAIN);
}

function say(text, isError = false) {
  const wanted = text || (known.length ? "" : "No worker serves a model yet; start one with `minilab-worker`.");
  if (wanted || hasSaid) notice(wanted, isError); // what others have said stays
  hasSaid = wanted !== "";
}

// An unchanged list is left alone: it may be open.
function offer(found) {
  const list = find("#model");
  const isSame = JSON.stringify(found) === JSON.stringify(known);
  const isFirst = !known.length && found.length > 0;
  known = found;
  if (isSame) return;
  const wanted = list.value || kept.model;
  list.replaceChildren(...found.map(({ id }) => new Option(id, id, false, id === wanted)));
  chooseModel(chosen());
  if (isFirst && !location.hash) show(chosen()?.chat ? "chat" : "completion");
}

find("#key").addEventListener("change", () => {
  useKey(find("#key").value); // kept no longer than the page
  listModels();
});
find("#model").addEventListener("change", () => { kept.model = find("#model").value; keep(); chooseModel(chosen()); });
document.addEventListener("visibilitychange", listModels);
find("#settings-panel").open = WIDE.matches;
WIDE.addEventListener("change", () => { find("#settings-panel").open = WIDE.matches; });
build(find("#settings"), kept.settings, (settings) => { kept.settings = settings; keep(); });

beginJobs();
beginBatches();
beginWorkers();
beginWriting();
beginViews();
show(location.hash.slice(2) || "write");
listModels();
