// The settings form: what may be asked for, in groups of which the rarely used are folded.

import { element, find } from "./dom.js";

const GROUPS = [
  ["Usual", [
    ["max_tokens", "New tokens at most", "whole", { min: 1 }, "A completion has 16 by default, a chat 1024."],
    ["temperature", "Temperature", "number", { min: 0 }, "0 always takes the most probable token."],
    ["top_p", "Top-p", "number", { min: 0, max: 1 }],
    ["top_k", "Top-k", "whole", { min: 1 }],
    ["seed", "Seed", "whole", { min: 0, max: 4294967295 }, "The same seed gives the same answer."],
    ["stop", "Stop texts", "lines", {}, "One in each line; the answer ends before the first."],
  ]],
  ["More sampling", [
    ["min_p", "Min-p", "number", { min: 0, max: 1 }],
    ["repetition_penalty", "Repetition penalty", "number", { min: 0 }],
    ["presence_penalty", "Presence penalty", "number", { min: -2, max: 2 }],
    ["frequency_penalty", "Frequency penalty", "number", { min: -2, max: 2 }],
    ["logit_bias", "Logit bias", "json", {}, 'Ids and what is added, such as {"12": -5}.'],
    ["allowed_token_ids", "The only ids allowed", "ids"],
    ["bad_words", "Words to avoid", "lines"],
    ["bad_words_ids", "Ids to avoid", "json", {}, "Sequences, such as [[12, 7], [5]]."],
  ]],
  ["Where the answer ends", [
    ["min_tokens", "New tokens at least", "whole", { min: 0 }],
    ["stop_token_ids", "Stop ids", "ids"],
    ["include_stop_str_in_output", "Keep the stop text", "truth"],
    ["ignore_eos", "Go on behind the model’s stop ids", "truth"],
  ]],
  ["The form of the answer", [
    ["form", "Form", "choice", { options: [
      ["", "Any text"], ["json_object", "JSON"], ["json_schema", "JSON of a schema"], ["regex", "A regular expression"],
      ["choice", "One of some texts"], ["grammar", "A grammar"],
    ] }],
    ["form_text", "Schema, expression, texts or grammar", "text", {}, "Texts: one in each line."],
  ]],
  ["How much is shown", [
    ["n", "Answers", "whole", { min: 1, max: 64 }],
    ["logprobs", "Probable tokens listed", "whole", { min: 0, max: 20, placeholder: "3" }, "Point at a token to see them."],
  ]],
  ["For chats", [
    ["tools", "Tools", "json", {}, "A list, as in OpenAI’s API."],
    ["chat_template_kwargs", "Variables of the template", "json", {}, 'Such as {"enable_thinking": false}.'],
  ]],
];
const FIELDS = GROUPS.flatMap(([, fields]) => fields);
const CHAT_ONLY = ["tools", "chat_template_kwargs"];
const LOGPROBS = 3;

export function build(form, kept, onChange) {
  GROUPS.forEach(([title, fields], at) => {
    const place = at === 0
      ? element("fieldset", {}, element("legend", { textContent: title }))
      : element("details", {}, element("summary", {}, title, " ", element("span", { className: "set" })));
    place.append(...fields.map((field) => made(field, kept)));
    form.append(place);
  });
  const changed = () => {
    for (const folded of form.querySelectorAll("details")) {
      const set = [...folded.querySelectorAll("[name]")].filter((input) => (input.type === "checkbox" ? input.checked : input.value !== "")).length;
      find(".set", folded).textContent = set ? `${set} set` : "";
    }
    onChange(Object.fromEntries(FIELDS.map(([name]) => [name, written(form.elements[name])])));
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", changed);
  form.addEventListener("reset", () => setTimeout(changed));
  changed();
}

const written = (input) => (input.type === "checkbox" ? input.checked : input.value);

function made([name, title, kind, range = {}, hint = ""], kept) {
  const value = kept[name] ?? "";
  let input;
  if (kind === "choice") {
    input = element("select", { name }, ...range.options.map(([each, label]) => new Option(label, each, false, each === value)));
  } else if (kind === "truth") {
    input = element("input", { name, type: "checkbox", checked: value === true });
    return element("label", { className: "truth" }, input, title);
  } else if (kind === "number" || kind === "whole") {
    input = element("input", { name, type: "number", step: kind === "whole" ? 1 : "any", inputMode: "decimal", ...range });
    input.value = value;
  } else {
    input = element("textarea", { name, rows: kind === "text" ? 4 : 1, spellcheck: false, value });
  }
  const label = element("label", {}, title, input);
  if (hint) {
    const id = `hint-${name}`;
    input.setAttribute("aria-describedby", id);
    return element("div", {}, label, element("p", { id, className: "hint", textContent: hint }));
  }
  return label;
}

const READERS = {
  number: Number,
  whole: Number,
  truth: (value) => value,
  lines: (text) => text.split("\n").filter((line) => line !== ""),
  ids: (text) => text.split(/[\s,]+/).filter((word) => word !== "").map((word) => {
    if (!/^[0-9]+$/.test(word)) throw new SyntaxError(`Ids must be whole numbers, got ${word}.`);
    return Number(word);
  }),
  json: (text) => JSON.parse(text),
};

// Fields of a request; those that are empty are left out. null where one of them is wrong, which is shown.
export function given(form, isChat) {
  const settings = {};
  for (const [name, , kind] of FIELDS) {
    const input = form.elements[name];
    const value = written(input);
    input.setCustomValidity("");
    if (value === "" || value === false || !(kind in READERS) || (CHAT_ONLY.includes(name) && !isChat)) continue;
    try {
      settings[name] = READERS[kind](value);
    } catch (error) {
      input.setCustomValidity(kind === "json" ? `This must be JSON: ${error.message}` : error.message);
    }
  }
  const form_text = form.elements.form_text;
  try {
    form_text.setCustomValidity("");
    Object.assign(settings, formOf(form.elements.form.value, form_text.value));
  } catch (error) {
    form_text.setCustomValidity(error.message);
  }
  for (const folded of form.querySelectorAll("details")) if (folded.querySelector(":invalid")) folded.open = true;
  if (form.querySelector(":invalid")) find("#settings-panel").open = true;
  if (!form.reportValidity()) return null;
  const listed = settings.logprobs ?? LOGPROBS;
  delete settings.logprobs;
  return { ...settings, ...(isChat ? { logprobs: true, top_logprobs: listed } : { logprobs: listed }) };
}

function formOf(kind, text) {
  if (kind === "") return {};
  if (kind === "json_object") return { response_format: { type: "json_object" } };
  if (text.trim() === "") throw new SyntaxError("This must not be empty for the form that is chosen.");
  if (kind === "json_schema") {
    let schema;
    try {
      schema = JSON.parse(text);
    } catch (error) {
      throw new SyntaxError(`A schema must be JSON: ${error.message}`);
    }
    return { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } };
  }
  return { structured_outputs: { [kind]: kind === "choice" ? READERS.lines(text) : text } };
}
