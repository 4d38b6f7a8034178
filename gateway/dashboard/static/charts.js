// Charts by Chart.js, drawn without animation, each with its sentence for who cannot see it.

import { h } from "./dom.js";
import * as format from "./format.js";

const live = new Set();

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Let go of all charts of the page before. */
export function clear() {
  for (const chart of live) chart.destroy();
  live.clear();
}

const figures = {
  // What each bar comes to, above it, and what it was before, as a short line.
  id: "figures",
  afterDatasetsDraw(chart, _, options) {
    if (!options.of) return;
    const { ctx } = chart;
    const y = chart.scales.y;
    ctx.save();
    ctx.font = "12px system-ui, sans-serif";
    ctx.textAlign = "center";
    chart.getDatasetMeta(0).data.forEach((element, index) => {
      const before = options.before[index];
      if (before !== null) {
        ctx.fillStyle = color("before");
        ctx.fillRect(element.x - element.width * 0.6, y.getPixelForValue(before) - 1, element.width * 1.2, 2);
      }
      const top = Math.min(element.y, before === null ? Infinity : y.getPixelForValue(before));
      ctx.fillStyle = color("ink");
      if (element.width > 34) ctx.fillText(options.of(index), element.x, top - 6);
    });
    ctx.restore();
  },
};

function drawn(holder, sentence, settings) {
  if (!window.Chart) {
    return h("p", { class: "fine" }, "Charts need Chart.js: pip install 'slipstream-gateway[dashboard]'");
  }
  const canvas = h("canvas", { role: "img", "aria-label": sentence });
  holder.append(canvas);
  // The canvas has to be in the page to know how wide it is.
  queueMicrotask(() => {
    if (holder.isConnected) live.add(new window.Chart(canvas, settings));
  });
  return holder;
}

function ticks(at, step) {
  const isLong = at.length > 8;
  const every = { minute: 15, hour: 6 }[step] ?? Math.ceil(at.length / 8);
  return { color: color("soft"), font: { size: 11 }, autoSkip: false, maxRotation: 0,
    callback: (_, index) => (index % every === 0 ? format.step(at[index], step, isLong) : null) };
}

const base = { animation: false, responsive: true, maintainAspectRatio: false, interaction: { mode: "index", intersect: false } };

/** What is under the pointer, as figures. */
function told(at, step, label) {
  const long = step !== "day" ? format.minute : (seconds) => format.step(seconds, step, true);
  return { animation: false, displayColors: false, callbacks: { title: ([item]) => long(at[item.dataIndex]), label } };
}

/** Bars of an amount by step, beside those of the span before. */
export function bars(at, step, values, before, shown, sentence) {
  const most = Math.max(...values, ...before.map((value) => value ?? 0), 1e-12);
  return drawn(h("div", { class: "canvas" }), sentence, {
    type: "bar",
    data: { labels: at, datasets: [{ data: values, backgroundColor: color("mark"), categoryPercentage: 0.8, barPercentage: 0.85 }] },
    plugins: [figures],
    options: { ...base, plugins: { legend: { display: false }, tooltip: told(at, step, (item) => shown(values[item.dataIndex])), figures: { of: (index) => shown(values[index]), before } },
      layout: { padding: { top: 18 } },
      scales: { x: { grid: { display: false }, border: { color: color("line") }, ticks: ticks(at, step) }, y: { display: false, min: 0, max: most * 1.05 } } },
  });
}

/** Lines from zero. Series: {values, name, color, dash}; `bound` is a line that is not to be crossed. */
export function lines(at, step, series, shown, sentence, bound = null) {
  const sets = series.map((one) => ({ data: one.values, borderColor: color(one.color ?? "mark"), borderWidth: 1.5, pointRadius: one.values.filter((value) => value !== null).length === 1 ? 2 : 0,
    borderDash: one.dash ?? [], spanGaps: false, tension: 0 }));
  if (bound !== null) sets.push({ data: at.map(() => bound), borderColor: color("alert"), borderWidth: 1, borderDash: [4, 3], pointRadius: 0 });
  const names = series.map((one) => one.name).concat("bound");
  const most = Math.max(...sets.flatMap((set) => set.data.map((value) => value ?? 0)));
  return drawn(h("div", { class: "canvas" }), sentence, {
    type: "line",
    data: { labels: at, datasets: sets },
    options: { ...base, normalized: true, plugins: { legend: { display: false }, tooltip: told(at, step, (item) => `${names[item.datasetIndex] ?? ""} ${shown(item.parsed.y)}`.trim()) },
      scales: {
        x: { grid: { display: false }, border: { color: color("line") }, ticks: ticks(at, step) },
        y: { min: 0, suggestedMax: most || 1, border: { display: false }, grid: { color: color("line") }, afterFit: (scale) => { scale.width = 58; },
          ticks: { color: color("soft"), font: { size: 11 }, maxTicksLimit: 3, callback: (value) => shown(value) } },
      } },
  });
}
