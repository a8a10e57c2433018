// The page of a sweep: asks the server that it came from, every other second while somebody looks,
// and draws the answers.

import { drawCharts } from "./charts.js";
import { byId, element } from "./dom.js";
import { drawMap, inCell } from "./heatmap.js";
import { drawRuns } from "./runs.js";

const EVERY_MS = 2000, OVER_MS = 10000, MOST_LINES = 12, OPEN_PROBLEMS = 3;

// What the reader has chosen: a column, whose variants are compared; else a cell of the map; and the
// run whose log is shown.
const view = { column: 0, cell: null, run: null };
let state = null, data = null, lines = [], tabled = "";
const tags = new Map(); // of the answers that the page has, by address

// --- Asking ---

// Returns an answer; null where it is the one that the page has.
async function ask(place) {
  const answer = await fetch(place, { headers: { "If-None-Match": tags.get(place) ?? "" } });
  if (answer.status === 304) return null;
  if (!answer.ok) throw new Error(await answer.text());
  if (answer.headers.has("ETag")) tags.set(place, answer.headers.get("ETag"));
  return answer;
}

async function look() {
  if (!document.hidden) {
    try {
      state = await (await ask("state")).json();
      showState();
      await lookAtRuns();
      await lookAtCurves();
      await lookAtLog();
      await lookAtTable();
    } catch (error) {
      byId("head").textContent = error instanceof TypeError ? "The server has ended." : error.message;
    }
  }
  setTimeout(look, state && state.over ? OVER_MS : EVERY_MS);
}

async function lookAtRuns() {
  const answer = await ask("runs");
  if (!answer) return;
  data = await answer.json();
  tags.delete(lookAtCurves.place); // the legend of the curves has the states of runs
  showRuns();
}

async function lookAtCurves() {
  const drawn = drawnLines();
  const place = drawn.cells ? `curves?cells=${drawn.cells.join(",")}` : `curves?runs=${drawn.runs.join(",")}`;
  if (place !== lookAtCurves.place) { tags.delete(place); lookAtCurves.place = place; }
  const answer = await ask(place);
  if (!answer) return;
  const curves = await answer.json();
  if (lookAtCurves.place !== place) return; // something else was chosen meanwhile
  lines = drawn.lines.map((line, i) => ({ ...line, curves: curves[i], note: line.run ? line.note : seedsText(curves[i].n) }));
  drawCharts(lines, data.metric);
}

async function lookAtLog() {
  const run = view.run ?? newestRun()?.run, pre = byId("log");
  if (!run) return;
  byId("h-log").textContent = `Log of ${data.runs.find((one) => one.run === run).label}`;
  const text = await (await ask(`log?run=${run}`)).text();
  const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
  if (pre.textContent !== text) pre.textContent = text;
  if (atEnd) pre.scrollTop = pre.scrollHeight;
}

async function lookAtTable() {
  if (!state.done) byId("table").textContent = "No run has its result yet.";
  const wanted = `${state.done} ${state.complete ? 1 : 0}`;
  if (!state.done || tabled === wanted) return;
  const answer = await ask("table");
  byId("table").innerHTML = await answer.text(); // escaped by the server; no script may run here
  const hasVerdicts = answer.headers.get("X-Verdicts") === "1";
  tabled = `${answer.headers.get("X-Results")} ${answer.headers.get("X-Verdicts")}`;
  byId("h-gains").textContent = hasVerdicts ? "Gains and verdicts" : "Gains so far";
  byId("gains-note").textContent = hasVerdicts
    ? "The store has recorded that these verdicts were read."
    : "Only means: the store has recorded that they were read. Verdicts appear once the sweep is complete.";
  if (hasVerdicts) document.querySelector("main").prepend(byId("gains")); // the result comes first
}

// --- What is chosen ---

function seedsText(n) {
  return n === 1 ? "1 run" : `${n} runs`;
}

function newestRun() {
  const begun = data.runs.filter((run) => run.at !== null && (!view.cell || inCell(run, view.cell)));
  return begun.reduce((best, run) => (!best || run.at > best.at ? run : best), null);
}

// Returns the lines of the charts, and what to ask the server for: `cells` or `runs`.
function drawnLines() {
  const chosenRun = data.runs.find((run) => run.run === view.run);
  const cell = chosenRun ? (chosenRun.row === null ? null : { ...chosenRun, seed: null }) : view.cell;
  let runs = cell ? data.runs.filter((run) => inCell(run, cell) && run.status !== "planned") : chosenRun ? [chosenRun] : null;
  if (runs) {
    runs = [...runs.filter((run) => run.run === view.run), ...runs.filter((run) => run.run !== view.run)].slice(0, MOST_LINES);
    const ofRuns = runs.map((run, place) => ({
      label: run.label, row: data.rows[run.row], dash: place, run: run.run,
      thick: run.run === view.run, note: run.status === "finished" ? "" : run.status,
    }));
    return { runs: runs.map((run) => run.run), lines: ofRuns };
  }
  const places = data.rows.map((_, row) => row).filter((row) => data.runs.some((run) => run.row === row && run.column === view.column));
  const shown = places.slice(0, MOST_LINES);
  const ofRows = shown.map((row) => ({ label: data.rows[row].label, row: data.rows[row], dash: Math.floor(row / 7) }));
  return { cells: shown.map((row) => `${row}.${view.column}`), lines: ofRows, left: places.length - shown.length };
}

async function choose(changes) {
  Object.assign(view, changes);
  showRuns();
  try {
    await lookAtCurves();
    await lookAtLog();
  } catch (error) {
    byId("head").textContent = error.message;
  }
}

function chooseCell(cell) {
  const isAgain = view.cell && ["row", "column", "seed"].every((key) => view.cell[key] === cell[key]);
  choose({ cell: isAgain ? null : cell, column: cell.column, run: null });
}

// --- What is shown ---

function fill(table, head, rows, left) {
  const cells = (texts, name, attributes) => texts.map((text, place) =>
    element(name, text, { ...attributes, ...(place < left ? {} : { class: "number" }) }));
  const thead = element("thead"), tbody = element("tbody"), top = element("tr");
  top.append(...cells(head, "th", { scope: "col" }));
  thead.append(top);
  for (const texts of rows) {
    const line = element("tr");
    line.append(...cells(texts, "td", {}));
    tbody.append(line);
  }
  table.replaceChildren(thead, tbody);
}

function showState() {
  document.title = `${state.done}/${state.total} ${state.title}`;
  byId("title").textContent = state.title;
  const head = state.head + (state.left ? `; time left: about ${state.left}` : "");
  if (byId("head").textContent !== head) byId("head").textContent = head;
  byId("driver").textContent = state.driver;
  const bar = byId("progress");
  bar.setAttribute("aria-valuemax", state.total);
  bar.setAttribute("aria-valuenow", state.done);
  for (const part of ["done", "running", "failed"]) {
    bar.querySelector(`.${part}`).style.width = `${100 * state[part] / (state.total || 1)}%`;
  }
  fill(byId("workers"), state.workers.head, state.workers.rows, 2);
  byId("running").hidden = !state.workers.rows.length;
  showProblems();
}

function showProblems() {
  const part = byId("problems"), summary = part.querySelector("summary");
  const isNew = part.hidden && state.lines.length > 0;
  part.hidden = !state.lines.length;
  if (isNew) part.open = state.lines.length <= OPEN_PROBLEMS;
  summary.textContent = state.failed ? `${state.failed} failed: the reasons` : "Notes";
  part.querySelector("ul").replaceChildren(...state.lines.map((line) => element("li", line)));
}

function showRuns() {
  drawMap(data, view.cell, chooseCell);
  drawRuns(data, view.cell, view.run, (run) => choose({ run: run.run === view.run ? null : run.run }));
  const column = byId("column");
  byId("column-choice").hidden = data.columns.length < 2;
  if (column.options.length !== data.columns.length) {
    column.replaceChildren(...data.columns.map((title, place) => element("option", title, { value: place })));
  }
  column.value = view.column;
  const drawn = drawnLines();
  byId("curves-of").textContent = drawn.runs
    ? `Single runs of ${view.run ? data.runs.find((run) => run.run === view.run).label : data.rows[view.cell.row].label}.`
    : `Means over seeds; bands from the lowest to the highest seed.${drawn.left ? ` The first ${MOST_LINES} variants; a click on the map shows others.` : ""}`;
  byId("all-variants").hidden = !drawn.runs;
}

byId("column").onchange = (event) => choose({ column: Number(event.target.value), cell: null, run: null });
byId("all-variants").onclick = () => choose({ cell: null, run: null });
window.addEventListener("resize", () => { if (data) drawCharts(lines, data.metric); });
look();
