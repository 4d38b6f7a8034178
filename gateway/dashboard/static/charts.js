// Charts by Chart.js, drawn without animation, each with its sentence for who cannot see it.

import { h } from "./dom.js";
import * as format from "./format.js";

/** Each chart that is drawn: its moments, what it says of one of them, and where that is told. */
const live = new Map();
let pointed = null;
let marks = [];
let isMissingTold = false;

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Let go of all charts of the page before. */
export function clear() {
  for (const chart of live.keys()) chart.destroy();
  live.clear();
  marks = [];
  isMissingTold = false;
}

/** What has happened meanwhile, on all charts of a page: {at, text, kind}, of which the kind is a colour. */
export function mark(events) {
  marks = events;
}

/** The step of a moment; -1 before the first one. */
function stepOf(at, moment) {
  return at.findLastIndex((begin) => begin <= moment);
}

/** Look at one moment on all charts at once, or at none: each one's figure says what it was then. */
function point(moment) {
  if (moment === pointed) return;
  pointed = moment;
  requestAnimationFrame(() => live.forEach(tell));
}

function tell(about, chart) {
  const index = pointed === null ? -1 : about.at.indexOf(pointed);
  chart.draw();
  const [value, note] = index < 0 ? about.usual : about.said(index);
  const happened = index < 0 ? [] : marks.filter((event) => stepOf(about.at, event.at) === index).map((event) => event.text);
  if (about.big) about.big.textContent = value;
  if (about.note) about.note.textContent = [note, ...happened].filter(Boolean).join("; ");
  chart.canvas.setAttribute("aria-valuenow", Math.max(index, 0));
  chart.canvas.setAttribute("aria-valuetext", index < 0 ? "" : [value, note, ...happened].filter(Boolean).join("; "));
}

/** By the pointer, or by the arrow keys where the chart has the focus. */
function follow(canvas, chart, at) {
  canvas.addEventListener("pointermove", (event) => {
    const index = chart.scales.x.getValueForPixel(event.offsetX);
    point(at[Math.min(Math.max(Math.round(index), 0), at.length - 1)]);
  });
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("blur", () => point(null));
  canvas.addEventListener("keydown", (event) => {
    const now = pointed === null ? at.length : at.indexOf(pointed);
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: at.length - 1 }[event.key];
    if (event.key === "Escape") return point(null);
    if (next === undefined) return;
    event.preventDefault();
    point(at[Math.min(Math.max(next, 0), at.length - 1)]);
  });
}

const crosshair = {
  // A line at the moment that is looked at, and a sign with a line at each one at which something has happened.
  id: "crosshair",
  afterDatasetsDraw(chart, _, { at }) {
    const { ctx, chartArea: area } = chart;
    const line = (index, kind, dash) => {
      const x = chart.getDatasetMeta(0).data[index]?.x;
      if (x === undefined) return;
      ctx.strokeStyle = ctx.fillStyle = color(kind);
      ctx.setLineDash(dash);
      ctx.beginPath();
      ctx.moveTo(x, area.top);
      ctx.lineTo(x, area.bottom);
      ctx.stroke();
      if (!dash.length) return;
      ctx.beginPath();
      ctx.moveTo(x - 4, area.top - 6);
      ctx.lineTo(x + 4, area.top - 6);
      ctx.lineTo(x, area.top);
      ctx.fill();
    };
    ctx.save();
    ctx.lineWidth = 1;
    for (const event of marks) line(stepOf(at, event.at), event.kind, [2, 3]);
    if (pointed !== null) line(at.indexOf(pointed), "ink", []);
    ctx.restore();
  },
};

const figures = {
  // What each bar comes to, above it, or the highest alone where there is no room for all; and what it was before, as a short line.
  id: "figures",
  afterDatasetsDraw(chart, _, options) {
    if (!options.of) return;
    const { ctx } = chart;
    const y = chart.scales.y;
    ctx.save();
    ctx.font = "12px system-ui, sans-serif";
    ctx.textAlign = "center";
    const { data } = chart.getDatasetMeta(0);
    const texts = data.map((_, index) => options.of(index));
    const widths = texts.map((text) => ctx.measureText(text).width);
    const hasRoom = widths.every((width) => width < chart.chartArea.width / data.length);
    const highest = data.reduce((best, element, index) => (element.y < data[best].y ? index : best), 0);
    data.forEach((element, index) => {
      const before = options.before[index];
      if (before !== null) {
        ctx.fillStyle = color("before");
        ctx.fillRect(element.x - element.width * 0.6, y.getPixelForValue(before) - 1, element.width * 1.2, 2);
      }
      const top = Math.min(element.y, before === null ? Infinity : y.getPixelForValue(before));
      ctx.fillStyle = color("ink");
      if (!hasRoom && index !== highest) return;
      const half = widths[index] / 2;
      ctx.fillText(texts[index], Math.min(Math.max(element.x, half), chart.width - half), top - 6);
    });
    ctx.restore();
  },
};

const AXIS_PX = 58;
const LONG_LABEL_PX = 48;
const SHORT_LABEL_PX = 28;

function drawn(sentence, at, said, settings) {
  const holder = h("div", { class: "canvas" });
  if (!window.Chart) {
    const wasTold = isMissingTold;
    isMissingTold = true;
    return wasTold ? null : h("p", { class: "fine" }, "Charts need Chart.js: pip install 'slipstream-gateway[dashboard]'");
  }
  const canvas = h("canvas", { role: "slider", tabindex: 0, "aria-label": sentence, "aria-valuemin": 0, "aria-valuemax": at.length - 1, "aria-valuenow": 0 });
  holder.append(canvas);
  // The canvas has to be in the page to know how wide it is.
  queueMicrotask(() => {
    if (!holder.isConnected) return;
    const chart = new window.Chart(canvas, settings);
    const figure = holder.closest("figure");
    const [big, note] = [figure?.querySelector(".big"), figure?.querySelector(".change")];
    const about = { at, said, big, note, usual: [big?.textContent ?? "", note?.textContent ?? ""] };
    live.set(chart, about);
    follow(canvas, chart, at);
    if (pointed !== null) tell(about, chart);
  });
  return holder;
}

function ticks(at, step) {
  const isLong = at.length > 8;
  const least = { minute: 15, hour: 6 }[step] ?? Math.ceil(at.length / 8);
  return { color: color("soft"), font: { size: 11 }, autoSkip: false, maxRotation: 0,
    callback(_, index) {
      const room = Math.max(Math.floor((this.chart.width - AXIS_PX) / (isLong ? LONG_LABEL_PX : SHORT_LABEL_PX)), 1);
      return index % Math.max(least, Math.ceil(at.length / room)) === 0 ? format.step(at[index], step, isLong) : null;
    } };
}

const base = { animation: false, responsive: true, maintainAspectRatio: false, events: [] };
const quiet = { legend: { display: false }, tooltip: { enabled: false } };

/** A step in full. */
function long(seconds, step) {
  return step === "day" ? format.step(seconds, step, true) : format.minute(seconds);
}

/** Bars of an amount by step, beside those of the span before. */
export function bars(at, step, values, before, shown, sentence) {
  const most = Math.max(...values, ...before.map((value) => value ?? 0), 1e-12);
  const said = (index) => [shown(values[index]), `${long(at[index], step)}${before[index] === null ? "" : `; before ${shown(before[index])}`}`];
  return drawn(sentence, at, said, {
    type: "bar",
    data: { labels: at, datasets: [{ data: values, backgroundColor: color("mark"), categoryPercentage: 0.8, barPercentage: 0.85 }] },
    plugins: [figures, crosshair],
    options: { ...base, plugins: { ...quiet, figures: { of: (index) => shown(values[index]), before }, crosshair: { at } },
      layout: { padding: { top: 18 } },
      scales: { x: { grid: { display: false }, border: { color: color("line") }, ticks: ticks(at, step) }, y: { display: false, min: 0, max: most * 1.05 } } },
  });
}

/**
 * Lines from zero. Series: {values, name, color, dash, isMain}, of which the main one is what the figure's number is of;
 * `bound` is a line that is not to be crossed.
 */
export function lines(at, step, series, shown, sentence, bound = null) {
  const sets = series.map((one) => ({ data: one.values, borderColor: color(one.color ?? "mark"), borderWidth: 1.5, pointRadius: one.values.filter((value) => value !== null).length === 1 ? 2 : 0,
    borderDash: one.dash ?? [], spanGaps: false, tension: 0 }));
  if (bound !== null) sets.push({ data: at.map(() => bound), borderColor: color("alert"), borderWidth: 1, borderDash: [4, 3], pointRadius: 0 });
  const most = Math.max(...sets.flatMap((set) => set.data.map((value) => value ?? 0)));
  const main = series.find((one) => one.isMain) ?? series[0];
  const value = (one, index) => (one.values[index] === null ? "–" : shown(one.values[index]));
  const said = (index) => [value(main, index), [long(at[index], step), ...series.filter((one) => one.name && !one.isMain).map((one) => `${one.name} ${value(one, index)}`)].join("; ")];
  return drawn(sentence, at, said, {
    type: "line",
    data: { labels: at, datasets: sets },
    plugins: [crosshair],
    options: { ...base, normalized: true, plugins: { ...quiet, crosshair: { at } },
      layout: { padding: { top: marks.length ? 8 : 0 } },
      scales: {
        x: { grid: { display: false }, border: { color: color("line") }, ticks: ticks(at, step) },
        y: { min: 0, suggestedMax: most || 1, border: { display: false }, grid: { color: color("line") }, afterFit: (scale) => { scale.width = Math.max(scale.width, AXIS_PX); },
          ticks: { color: color("soft"), font: { size: 11 }, maxTicksLimit: 3, precision: shown === format.count ? 0 : undefined, callback: (value) => shown(value) } },
      } },
  });
}
