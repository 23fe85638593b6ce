// Elements, made without HTML in strings.

/** An element; keys of `attributes` that begin with "on" are listeners, `class` and the others are attributes, and what is null or false is left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets the text of an element if it is another one, so that readers and selections are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Makes the rows of `body` those of `items`, in that order. A row that is there already is kept, so that focus stays. */
export function syncRows(body, items, key, make, fill) {
  const rows = new Map([...body.children].map((row) => [row.dataset.key, row]));
  let place = body.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let row = rows.get(name);
    rows.delete(name);
    if (!row) {
      row = make(item);
      row.dataset.key = name;
    }
    if (row === place) place = place.nextElementSibling;
    else body.insertBefore(row, place);
    fill(row, item);
  }
  rows.forEach((row) => row.remove());
}

/** The value of a custom property of the theme. */
export function theme(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A group of radio buttons that looks like one control. `options` are [value, text]. */
export function choice(label, name, options, value, onchange) {
  const option = ([key, text]) => h("label", {},
    h("input", { type: "radio", name, value: key, checked: key === value, onchange: () => onchange(key) }),
    h("span", {}, text));
  return h("fieldset", { class: "choice" }, h("legend", { class: "hidden" }, label), options.map(option));
}
