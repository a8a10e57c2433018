// The list of runs: found by words of their labels, by state and by a cell of the map; sorted by any
// column.

import { byId, durationText, element, scoreText } from "./dom.js";
import { inCell } from "./heatmap.js";

const FIRST = 50; // runs that are shown at once
const COLUMNS = [
  { key: "label", title: "run", compare: (a, b) => a.place - b.place },
  { key: "status", title: "state", compare: (a, b) => a.order - b.order || a.place - b.place },
  { key: "score", title: "score", number: true },
  { key: "seconds", title: "time", number: true },
  { key: "at", title: "changed", number: true },
];
let sorting = { key: "at", falling: true }, isWhole = false;

function sorted(runs) {
  const { key, falling } = sorting, compare = COLUMNS.find((column) => column.key === key).compare;
  const sign = falling ? -1 : 1;
  return runs.sort((a, b) => {
    if (compare) return sign * compare(a, b);
    if (a[key] === null || b[key] === null) return (a[key] === null) - (b[key] === null) || a.place - b.place; // those without one are last
    return sign * (a[key] - b[key]) || a.place - b.place;
  });
}

function matching(data, cell) {
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean), status = byId("status").value;
  return data.runs.filter((run) => (!cell || inCell(run, cell)) && (!status || run.status === status)
    && words.every((word) => run.label.toLowerCase().includes(word)));
}

function sortButton({ key, title }, again) {
  const button = element("button", title, { type: "button", class: "sort", "data-key": key });
  button.onclick = () => {
    sorting = { key, falling: sorting.key === key ? !sorting.falling : key !== "label" && key !== "status" };
    again();
  };
  return button;
}

function header(again) {
  const line = element("tr");
  for (const column of COLUMNS) {
    const order = sorting.key !== column.key ? "none" : sorting.falling ? "descending" : "ascending";
    const cell = element("th", undefined, { scope: "col", "aria-sort": order, ...(column.number ? { class: "number" } : {}) });
    cell.append(sortButton(column, again));
    line.append(cell);
  }
  const head = element("thead");
  head.append(line);
  return head;
}

function runLine(run, chosen, choose) {
  const line = element("tr", undefined, run.run === chosen ? { class: "chosen" } : {});
  const name = element("th", undefined, { scope: "row" });
  const button = element("button", run.label, { type: "button", class: "link", "data-run": run.run, "aria-pressed": run.run === chosen });
  button.onclick = () => choose(run);
  name.append(button);
  const state = element("td");
  state.append(element("span", run.status, { class: `state ${run.status}` }));
  const at = run.at === null ? "" : new Date(1000 * run.at).toLocaleTimeString("en-GB");
  line.append(name, state);
  for (const text of [scoreText(run.score), durationText(run.seconds), at]) line.append(element("td", text, { class: "number" }));
  return line;
}

// Fills the choice of states with those that runs have.
function showStatuses(data) {
  const counts = new Map();
  for (const run of data.runs) counts.set(run.status, (counts.get(run.status) ?? 0) + 1);
  const select = byId("status"), before = select.value;
  const options = data.statuses.filter((status) => counts.has(status)).map((status) => element("option", `${status} (${counts.get(status)})`, { value: status }));
  select.replaceChildren(element("option", "any", { value: "" }), ...options);
  select.value = counts.has(before) ? before : "";
}

// `chosen`: the id of the run whose log is shown; `cell`: the cell of the map that is shown, or null.
export function drawRuns(data, cell, chosen, choose) {
  const again = () => drawRuns(data, cell, chosen, choose);
  data.runs.forEach((run, place) => { run.place = place; run.order = data.statuses.indexOf(run.status); });
  showStatuses(data);
  const runs = sorted(matching(data, cell)), shown = isWhole ? runs : runs.slice(0, FIRST);
  const body = element("tbody");
  body.append(...shown.map((run) => runLine(run, chosen, choose)));
  const table = byId("runs"), focus = table.contains(document.activeElement) ? { ...document.activeElement.dataset } : null;
  table.replaceChildren(header(again), body);
  if (focus?.run) table.querySelector(`[data-run="${focus.run}"]`)?.focus({ preventScroll: true });
  if (focus?.key) table.querySelector(`[data-key="${focus.key}"]`)?.focus({ preventScroll: true });
  const of = cell ? ` of ${data.rows[cell.row].label}${data.columns.length > 1 ? `, ${data.columns[cell.column]}` : ""}` : "";
  byId("shown").textContent = `${runs.length} of ${data.runs.length} runs${of}`;
  byId("more").hidden = runs.length <= FIRST;
  byId("more").textContent = isWhole ? `Show the first ${FIRST}` : `Show all ${runs.length}`;
  byId("more").onclick = () => { isWhole = !isWhole; again(); };
  byId("find").oninput = again;
  byId("status").onchange = again;
}
