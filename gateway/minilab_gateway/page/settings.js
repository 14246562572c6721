// The settings form: what may be asked for, and what was.

const FIELDS = [
  ["max_tokens", "New tokens at most", { min: 1, step: 1 }],
  ["temperature", "Temperature", { min: 0, step: "any" }],
  ["top_k", "Top-k", { min: 1, step: 1 }],
  ["top_p", "Top-p", { min: 0, max: 1, step: "any" }],
  ["min_p", "Min-p", { min: 0, max: 1, step: "any" }],
  ["repetition_penalty", "Repetition penalty", { min: 0, step: "any" }],
  ["presence_penalty", "Presence penalty", { min: -2, max: 2, step: "any" }],
  ["frequency_penalty", "Frequency penalty", { min: -2, max: 2, step: "any" }],
  ["seed", "Seed", { min: 0, max: 4294967295, step: 1 }],
  ["stop", "Stop text", null],
];

export function build(form, kept, onChange) {
  for (const [name, title, range] of FIELDS) {
    const label = document.createElement("label");
    const input = document.createElement("input");
    label.textContent = title;
    input.name = name;
    if (range) Object.assign(input, { type: "number", ...range });
    input.value = kept[name] ?? "";
    label.append(input);
    form.append(label);
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => onChange(Object.fromEntries(new FormData(form))));
}

// Fields of a request; those that are empty are left out.
export function given(form) {
  if (!form.reportValidity()) return null;
  const settings = {};
  for (const [name, , range] of FIELDS) {
    const text = form.elements[name].value;
    if (text !== "") settings[name] = range ? Number(text) : text;
  }
  return settings;
}
