// Makes elements of HTML and SVG. Texts are set as text, never as HTML.

export const byId = (id) => document.getElementById(id);

function made(node, attributes, text) {
  if (text !== undefined) node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

export function element(name, text, attributes = {}) {
  return made(document.createElement(name), attributes, text);
}

export function shape(name, attributes = {}, text) {
  return made(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, text);
}

// Gives a node the colour of a row, light and dark; the style sheet takes the one of the page.
export function inked(node, row) {
  node.classList.add("ink");
  node.style.setProperty("--light", row?.light ?? "#666666");
  node.style.setProperty("--dark", row?.dark ?? "#aaaaaa");
  return node;
}

// Writes a score with four digits.
export function scoreText(value) {
  if (value === null || value === undefined) return "";
  const text = value.toPrecision(4);
  return text.includes("e") ? String(+text) : text;
}

export function durationText(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} min`;
}
