// Elements made by programs: what is given as text stays text, whatever it holds.

export const find = (selector, within = document) => within.querySelector(selector);

// element("a", { href: "x" }, "text", other): properties, then children.
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// What is said to whoever looks at the page: good news is quiet, errors are not.
export function notice(text, isError = false) {
  const place = find("#notice");
  if (place.textContent !== text) place.textContent = text;
  place.classList.toggle("failed", isError);
}

export const count = (number) => (number === null || number === undefined ? "–" : Math.round(number).toLocaleString("en"));

// How long ago, or when, in few words.
export function ago(moment) {
  const seconds = Math.max(0, (Date.now() - moment) / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return new Date(moment).toLocaleDateString();
}

// A list that is brought up to date row by row, so that focus and selection stay.
export function renew(place, items, idOf, make, update) {
  const rows = new Map([...place.children].map((row) => [row.dataset.id, row]));
  const ids = items.map(idOf);
  for (const [id, row] of rows) if (!ids.includes(id)) row.remove();
  items.forEach((item, at) => {
    let row = rows.get(ids[at]);
    if (!row) {
      row = make(item);
      row.dataset.id = ids[at];
    }
    update(row, item);
    if (place.children[at] !== row) place.insertBefore(row, place.children[at] ?? null);
  });
}
