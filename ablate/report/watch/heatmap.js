// The map of a sweep: rows by columns, each cell with the states of its runs and their mean score.
// A sweep of one column has its seeds beside the mean instead.

import { byId, element, scoreText } from "./dom.js";

const MOST_SEEDS = 12;
const MARKS = { running: "▸", failed: "✕", oom: "✕", hung: "✕", diverged: "↯", blocked: "⊘", skipped: "–" };

// Returns the columns of the map: {title, column, seed}; seed is null for all seeds.
function mapColumns(data) {
  if (data.columns.length > 1) return data.columns.map((title, column) => ({ title, column, seed: null }));
  const seeds = [...new Set(data.runs.filter((run) => run.row !== null).map((run) => run.seed))].sort((a, b) => a - b);
  const columns = [{ title: "mean", column: 0, seed: null }];
  if (seeds.length <= MOST_SEEDS) seeds.forEach((seed) => columns.push({ title: `seed ${seed}`, column: 0, seed }));
  return columns;
}

export function inCell(run, cell) {
  return run.row === cell.row && run.column === cell.column && (cell.seed === null || run.seed === cell.seed);
}

function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}

function summary(runs) {
  const counts = {};
  for (const run of runs) counts[run.status] = (counts[run.status] ?? 0) + 1;
  const scored = runs.filter((run) => run.status === "finished" && run.score !== null);
  return { counts, total: runs.length, finished: counts.finished ?? 0, mean: mean(scored.map((run) => run.score)) };
}

// Returns 0 to 1 for each mean: from the worst of its column to the best.
function shades(means, sign) {
  const known = means.filter((value) => value !== null).map((value) => sign * value);
  const low = Math.min(...known), high = Math.max(...known);
  return means.map((value) => (value === null || low === high ? 0 : (sign * value - low) / (high - low)));
}

function cellButton(cell, label, found, shade, isChosen, choose) {
  const score = scoreText(found.mean);
  const marks = Object.entries(found.counts).filter(([status]) => MARKS[status]).map(([status, count]) => `${MARKS[status]}${count}`);
  const button = element("button", undefined, { type: "button", "aria-pressed": isChosen });
  button.dataset.cell = [cell.row, cell.column, cell.seed ?? ""].join(".");
  button.append(element("span", score || "·", { class: "mean" }));
  button.append(element("span", [cell.seed === null ? `${found.finished}/${found.total}` : "", ...marks].filter(Boolean).join(" "), { class: "states" }));
  const counts = Object.entries(found.counts).map(([status, count]) => `${count} ${status}`).join(", ");
  button.setAttribute("aria-label", `${label}: ${score ? `${score}; ` : ""}${counts}`);
  button.title = `${label}: ${counts}`;
  button.style.setProperty("--shade", `${Math.round(45 * shade)}%`);
  if (!found.finished) button.classList.add("empty");
  if (["failed", "oom", "hung"].some((status) => found.counts[status])) button.classList.add("failed");
  if (found.counts.running) button.classList.add("running");
  button.onclick = () => choose(cell);
  return button;
}

export function drawMap(data, chosen, choose) {
  const columns = mapColumns(data), groups = new Map();
  for (const run of data.runs) {
    if (run.row === null) continue;
    for (const seed of [null, run.seed]) {
      const key = `${run.row}.${run.column}.${seed ?? ""}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(run);
    }
  }
  const found = data.rows.map((_, row) => columns.map(({ column, seed }) => {
    const runs = groups.get(`${row}.${column}.${seed ?? ""}`);
    return runs ? summary(runs) : null; // null: an excluded cell
  }));
  const shaded = columns.map((_, place) => shades(found.map((cells) => cells[place]?.mean ?? null), data.sign));
  const decided = data.rows.some((row) => row.decided);

  const head = element("tr");
  head.append(element("th", "variant", { scope: "col" }));
  columns.forEach(({ title }) => head.append(element("th", title, { scope: "col" })));
  if (decided) head.append(element("th", "last look", { scope: "col" }));
  const thead = element("thead"), tbody = element("tbody");
  thead.append(head);
  data.rows.forEach((row, place) => {
    const line = element("tr");
    line.append(element("th", row.label, { scope: "row" }));
    columns.forEach(({ title, column, seed }, at) => {
      const cell = { row: place, column, seed }, td = element("td");
      if (found[place][at]) {
        const isChosen = chosen !== null && ["row", "column", "seed"].every((key) => chosen[key] === cell[key]);
        td.append(cellButton(cell, `${row.label}, ${title}`, found[place][at], shaded[at][place], isChosen, choose));
      }
      line.append(td);
    });
    if (decided) line.append(element("td", row.decided));
    tbody.append(line);
  });
  const table = byId("map"), focused = table.contains(document.activeElement) ? document.activeElement.dataset.cell : null;
  table.replaceChildren(thead, tbody);
  if (focused) table.querySelector(`[data-cell="${focused}"]`)?.focus();
  byId("map-note").textContent = `Means of finished runs: newest ${data.metric}. The stronger the colour, the better in its column. `
    + "Below, finished of planned runs; ▸ running, ✕ failed. Click a cell to see its runs.";
}
