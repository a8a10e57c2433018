// Two charts, of the loss and of the first metric: lines, bands from the lowest to the highest seed,
// and one legend.

import { byId, element, inked, scoreText, shape } from "./dom.js";

const DASHES = ["", "7 3", "2 3", "9 3 2 3"];

// Returns round numbers from low to high, about `count` of them; whole ones where `whole` is true.
function ticks(low, high, count, whole = false) {
  const raw = (high - low) / count, size = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 5, 10].find((n) => n * size >= raw) * size;
  if (whole) step = Math.max(1, Math.round(step));
  const numbers = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) numbers.push(+(n * step).toPrecision(12));
  return numbers;
}

function limits(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

const dashOf = (line) => DASHES[line.dash % DASHES.length];

function swatch(line) {
  const svg = shape("svg", { viewBox: "0 0 28 10", "aria-hidden": "true" });
  svg.append(inked(shape("line", { class: "line", x1: 0, x2: 28, y1: 5, y2: 5, "stroke-dasharray": dashOf(line) }), line.row));
  return svg;
}

function drawAxes(svg, { left, right, top, foot }, px, py, [x0, x1], [y0, y1], name) {
  for (const y of ticks(y0, y1, 5)) {
    svg.append(shape("line", { class: "grid", x1: left, x2: right, y1: py(y), y2: py(y) }));
    svg.append(shape("text", { x: left - 6, y: py(y) + 4, "text-anchor": "end" }, String(y)));
  }
  for (const x of ticks(x0, x1, Math.max(2, (right - left) / 90), x1 - x0 >= 2)) {
    svg.append(shape("text", { x: px(x), y: foot + 16, "text-anchor": "middle" }, x.toLocaleString("en")));
  }
  svg.append(shape("text", { x: (left + right) / 2, y: foot + 31, "text-anchor": "middle" }, name));
}

// Draws the course `key` ("loss" or "score") of each line: {label, row, dash, thick, run, curves}.
function drawChart(svg, name, key, lines) {
  const { width, height } = svg.getBoundingClientRect();
  const drawn = lines.filter((line) => line.curves[key].x.length);
  const ends = drawn.map((line) => `${line.label} ${line.curves[key].mean.at(-1)}`);
  svg.setAttribute("aria-label", `${name}: ${ends.join("; ") || "nothing measured yet"}`);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  if (!drawn.length) return svg.append(shape("text", { x: 8, y: 24 }, "Nothing measured yet."));
  const xs = limits(drawn.flatMap((line) => line.curves[key].x));
  const ys = limits(drawn.flatMap(({ curves }) => [...curves[key].mean, ...(curves[key].low ?? []), ...(curves[key].high ?? [])]));
  const box = { left: 52, right: width - 18, top: 10, foot: height - 34 };
  const px = (x) => box.left + (x - xs[0]) / (xs[1] - xs[0]) * (box.right - box.left);
  const py = (y) => box.foot - (y - ys[0]) / (ys[1] - ys[0]) * (box.foot - box.top);
  const place = (x, y) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`;
  drawAxes(svg, box, px, py, xs, ys, drawn[0].curves.by);
  for (const { row, curves } of drawn) {
    const { x, low, high } = curves[key];
    if (!low) continue;
    const edge = [...x.map((at, i) => place(at, high[i])), ...x.map((at, i) => place(at, low[i])).reverse()];
    svg.append(inked(shape("polygon", { class: "band", points: edge.join(" ") }), row));
  }
  for (const line of drawn) {
    const { x, mean } = line.curves[key];
    const points = x.map((at, i) => place(at, mean[i])).join(" ");
    const drawing = shape("polyline", { class: line.thick ? "line thick" : "line", "stroke-dasharray": dashOf(line), points });
    if (line.run) drawing.dataset.run = line.run;
    drawing.append(shape("title", {}, `${line.label}: ${mean.at(-1)}`));
    svg.append(inked(drawing, line.row));
    svg.append(inked(shape("circle", { class: "end", cx: px(x.at(-1)), cy: py(mean.at(-1)), r: 2.5 }), line.row));
  }
}

export function drawCharts(lines, metric) {
  byId("score-name").textContent = metric;
  drawChart(byId("loss"), "training loss", "loss", lines);
  drawChart(byId("score"), metric, "score", lines);
  byId("legend").replaceChildren(...lines.map((line) => {
    const score = scoreText(line.curves.score.mean.at(-1));
    const item = element("li", undefined, line.thick ? { class: "thick" } : {});
    item.append(swatch(line), element("span", line.label), element("span", [score, line.note].filter(Boolean).join(", "), { class: "quiet" }));
    return item;
  }));
}
