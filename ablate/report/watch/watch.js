"use strict";
// Asks the server that it came from, every other second while somebody looks, and draws the answers.
// Labels and logs are set as text, never as HTML.

const EVERY_MS = 2000, OVER_MS = 10000, FIRST = 6, MOST = 12;
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);

let state = null, series = [], tag = "", tabled = -1;
let chosen = null; // ids of runs; null: the newest

// --- Asking ---

async function ask(place, headers = {}) {
  const answer = await fetch(place, { headers });
  if (answer.status === 304) return null;
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

async function look() {
  if (!document.hidden) {
    try {
      state = await (await ask("state")).json();
      showState();
      await lookAtCurves();
      await lookAtLog();
      await lookAtTable();
    } catch (error) {
      $("head").textContent = error instanceof TypeError ? "The server has ended." : error.message;
    }
  }
  setTimeout(look, state && state.over ? OVER_MS : EVERY_MS);
}

function drawn() {
  return chosen ?? state.newest.slice(0, FIRST).map((one) => one.run);
}

async function lookAtCurves() {
  const ids = drawn();
  const answer = ids.length ? await ask(`curves?runs=${ids.join(",")}`, { "If-None-Match": tag }) : null;
  if (answer) {
    series = await answer.json();
    tag = answer.headers.get("ETag");
    drawCharts();
  }
}

async function lookAtLog() {
  const run = $("run").value, pre = $("log");
  if (!run) return;
  const text = await (await ask(`log?run=${run}`)).text();
  const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
  if (pre.textContent !== text) pre.textContent = text;
  if (atEnd) pre.scrollTop = pre.scrollHeight;
}

async function lookAtTable() {
  if (!state.done) $("table").textContent = "No run has its result yet.";
  if (!state.done || tabled === state.done) return;
  const answer = await ask("table");
  $("table").innerHTML = await answer.text(); // escaped by the server; no script may run here
  tabled = Number(answer.headers.get("X-Results"));
}

// --- What is shown ---

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function fill(table, head, rows, left = 1) {
  const top = element("tr");
  head.forEach((text, place) => {
    top.append(element("th", text, { scope: "col", ...(place < left ? {} : { class: "number" }) }));
  });
  const thead = element("thead"), tbody = element("tbody");
  thead.append(top);
  for (const texts of rows) {
    const line = element("tr");
    texts.forEach((text, place) => line.append(place
      ? element("td", text, place < left ? {} : { class: "number" })
      : element("th", text, { scope: "row" })));
    tbody.append(line);
  }
  table.replaceChildren(thead, tbody);
}

function showState() {
  document.title = `${state.done}/${state.total} ${state.title}`;
  $("title").textContent = state.title;
  const head = state.head + (state.left ? `; time left: ${state.left}` : "");
  if ($("head").textContent !== head) $("head").textContent = head;
  $("driver").textContent = state.driver;
  $("progress").max = state.total || 1;
  $("progress").value = state.done;
  fill($("workers"), state.workers.head, state.workers.rows, 2);
  $("running").hidden = !state.workers.rows.length;
  fill($("variants"), state.variants.head, state.variants.rows);
  $("lines").replaceChildren(...state.lines.map((line) => element("li", line)));
  showRuns();
}

function showRuns() {
  const ids = drawn(), list = $("newest"), select = $("run");
  const known = new Set(state.newest.map((one) => one.run));
  const runs = [...state.newest, ...series.filter((one) => ids.includes(one.run) && !known.has(one.run))];
  const buttons = new Map([...list.children].map((button) => [button.dataset.run, button]));
  runs.forEach((one, place) => {
    const button = buttons.get(one.run) ?? runButton(one);
    buttons.delete(one.run);
    button.lastChild.textContent = [one.label, one.status === "finished" ? "" : one.status, one.score].filter(Boolean).join(", ");
    button.setAttribute("aria-pressed", ids.includes(one.run));
    if (list.children[place] !== button) list.insertBefore(button, list.children[place] ?? null);
  });
  buttons.forEach((button) => button.remove());
  $("follow").hidden = chosen === null;
  const options = runs.map((one) => one.run).join();
  if (select.dataset.runs !== options) {
    const before = select.value;
    select.replaceChildren(...runs.map((one) => element("option", one.label, { value: one.run })));
    select.value = runs.some((one) => one.run === before) ? before : runs[0]?.run ?? "";
    select.dataset.runs = options;
  }
}

function runButton(one) {
  const button = element("button", undefined, { type: "button", "data-run": one.run });
  const dot = shape("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
  dot.append(shape("circle", { cx: 5, cy: 5, r: 4.5, fill: one.colour || "#666" }));
  button.append(dot, document.createTextNode(""));
  button.onclick = () => choose(one.run);
  return button;
}

async function choose(run) {
  const ids = drawn();
  chosen = ids.includes(run) ? ids.filter((id) => id !== run) : [run, ...ids].slice(0, MOST);
  $("run").value = run;
  if (!chosen.length) { series = []; drawCharts(); }
  showRuns();
  await lookAtCurves();
  await lookAtLog();
}

// --- Charts ---

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function ticks(low, high, count) {
  const raw = (high - low) / count, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((n) => n * size >= raw) * size;
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high + 1e-9 * step; n++) found.push(+(n * step).toPrecision(12));
  return found;
}

function drawCharts() {
  $("score-name").textContent = series.length ? series[0].metric : "validation";
  drawChart($("loss"), "train_loss", "training loss");
  drawChart($("score"), "score", $("score-name").textContent);
}

function drawChart(svg, key, name) {
  const { width, height } = svg.getBoundingClientRect();
  const lines = series.map((one) => ({ ...one, points: one.x.map((x, i) => [x, one[key][i]]).filter(([x, y]) => x !== null && y !== null) }))
    .filter((one) => one.points.length);
  const ends = lines.map((one) => `${one.label} ${one.points.at(-1)[1]}`);
  svg.setAttribute("aria-label", `${name}: ${ends.join("; ") || "nothing measured yet"}`);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  if (!lines.length) return svg.append(shape("text", { x: 8, y: 24 }, "Nothing measured yet."));
  const all = lines.flatMap((one) => one.points);
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const [x, y] of all) { x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y); }
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
  if (y0 === y1) { y0 -= 0.5; y1 += 0.5; }
  const [left, right, top, foot] = [52, width - 18, 10, height - 34];
  const px = (x) => left + (x - x0) / (x1 - x0) * (right - left);
  const py = (y) => foot - (y - y0) / (y1 - y0) * (foot - top);
  for (const y of ticks(y0, y1, 5)) {
    svg.append(shape("line", { class: "grid", x1: left, x2: right, y1: py(y), y2: py(y) }));
    svg.append(shape("text", { x: left - 6, y: py(y) + 4, "text-anchor": "end" }, String(y)));
  }
  for (const x of ticks(x0, x1, Math.max(2, width / 110))) {
    svg.append(shape("text", { x: px(x), y: foot + 16, "text-anchor": "middle" }, String(x)));
  }
  svg.append(shape("text", { x: (left + right) / 2, y: foot + 31, "text-anchor": "middle" }, lines[0].by));
  for (const one of lines) {
    const dash = DASHES[Number(one.label.split("#").at(-1).split(".")[0]) % DASHES.length] ?? "";
    const colour = one.colour || "#666";
    const line = shape("polyline", { class: "line", stroke: colour, "stroke-dasharray": dash, "data-run": one.run,
      points: one.points.map(([x, y]) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`).join(" ") });
    line.append(shape("title", {}, `${one.label}: ${one.points.at(-1)[1]}`));
    const [x, y] = one.points.at(-1);
    svg.append(line, shape("circle", { cx: px(x), cy: py(y), r: 2.5, fill: colour }));
  }
}

$("run").onchange = lookAtLog;
$("follow").onclick = () => { chosen = null; showRuns(); lookAtCurves(); };
document.addEventListener("visibilitychange", () => { tag = ""; });
window.addEventListener("resize", drawCharts);
look();
