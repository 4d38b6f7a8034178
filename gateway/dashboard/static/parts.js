// What several pages are put together of.

import { lines } from "./charts.js";
import { told } from "./api.js";
import { h, spark, table } from "./dom.js";
import * as format from "./format.js";

/** A part of a page under its name, which is a text or an element. */
export function section(name, ...children) {
  return h("section", { "aria-label": name.textContent ?? name }, h("h2", null, name), ...children);
}

/** One number, what is to be said of it, and its chart. */
export function small(name, value, note, chart, isBad = false) {
  return h("figure", null, h("h3", null, name), h("p", { class: "big" }, value), h("p", { class: `change ${isBad ? "bad" : ""}` }, note), chart);
}

/** How far a share has moved, in words. */
export function points(now, before) {
  if (now === null || before === null) return "";
  const by = (now - before) * 100;
  return Math.abs(by) < 0.05 ? "no change" : `${by > 0 ? "+" : "−"}${Math.abs(by).toFixed(1)} points`;
}

/** Some counts together as a share of another one; null where there are no counts, or nothing to share. */
export function share(counts, parts, whole) {
  return counts ? format.share(parts.reduce((sum, part) => sum + counts[part], 0), counts[whole]) : null;
}

/** The same by step, as a line. */
export function rates({ at, step, counts }, name, parts, whole) {
  const values = counts[whole].map((all, index) => format.share(parts.reduce((sum, part) => sum + counts[part][index], 0), all));
  return lines(at, step, [{ values }], format.percent, `${name} by ${step}`);
}

/** A form under a summary: fields of [name, label, value]; `send` has their values, and what it raises is said below. */
export function form(title, fields, button, send, isOpen = false) {
  const inputs = fields.map(([field, label, value, kind]) => h("label", null, label, kind === "long" ? h("textarea", { name: field, rows: 4 }, value) : h("input", { name: field, value })));
  const said = h("p", { class: "bad", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    said.textContent = "";
    try {
      await send(Object.fromEntries(new FormData(event.target)));
    } catch (error) {
      said.textContent = error.message;
    }
  };
  return h("details", { open: isOpen }, h("summary", null, title), h("form", { class: "form", onsubmit: submit }, inputs, h("button", { class: "action" }, button), said));
}

/** How backends are, and have been. */
export function backendTable(rows) {
  const state = (row) => (row.now.breaker_open ? "■ out" : row.now.probe_up === 0 ? "■ does not answer" : "● working");
  const sum = (values) => values.reduce((all, value) => all + value, 0);
  const known = (values) => values.map((value) => value ?? 0);
  const away = (row) => [row.minutes_out && `out ${format.count(row.minutes_out)} min`, row.minutes_silent && `silent ${format.count(row.minutes_silent)} min`].filter(Boolean).join(", ") || "–";
  const columns = [
    { title: "Backend", of: (row) => row.name },
    { title: "State", of: state, cell: (row) => h("span", { class: state(row).startsWith("■") ? "bad" : "good" }, state(row)) },
    { title: "Away", of: away, cell: (row) => h("span", { class: away(row) === "–" ? "" : "bad" }, away(row)) },
    { title: "In flight", number: true, of: (row) => format.count(row.now.in_flight ?? 0), cell: (row) => [format.count(row.now.in_flight ?? 0), " ", row.in_flight.some(Boolean) && spark(known(row.in_flight))] },
    { title: "Calls", number: true, of: (row) => format.count(sum(row.calls)), csv: (row) => sum(row.calls) },
    { title: "Load", of: () => "", cell: (row) => (row.calls.length ? spark(row.calls) : "") },
    { title: "First token, mean", number: true, of: (row) => format.ms(row.mean_ttft_ms) },
    { title: "Prompt cache", number: true, of: (row) => format.percent(format.share(row.cached_tokens, row.input_tokens)) },
    { title: "Speculation accepted", number: true, of: (row) => format.percent(format.share(row.accepted_tokens, row.drafted_tokens)) },
    rows.some((row) => row.now.kv_blocks !== undefined) && { title: "Blocks told", number: true, of: (row) => format.count(row.now.kv_blocks), csv: (row) => row.now.kv_blocks },
    { title: "Failed", number: true, of: (row) => format.percent(format.share(row.failed, sum(row.calls))) },
  ].filter(Boolean);
  return table("backends", columns, rows);
}

/**
 * Something that is told line by line while it is found out, on `path`: what begins and ends it, where it is said, and an
 * `end` for who goes elsewhere. `body` is asked for what to send, `results` makes elements of all that was told so far.
 */
export function trial(path, title, body, results) {
  let running = null;
  const end = () => running?.abort();
  const button = h("button", { class: "action first" }, title);
  const stop = h("button", { class: "quiet", type: "button", hidden: true, onclick: end }, "Stop");
  const said = h("div", { class: "explained", "aria-live": "polite" });
  const submit = async (event) => {
    event.preventDefault();
    end();
    running = new AbortController();
    button.disabled = true;
    stop.hidden = false;
    const found = {};
    try {
      await told(path, body(), running.signal, (message) => {
        Object.assign(found, message);
        said.replaceChildren(...results(found));
      });
    } catch (error) {
      said.append(h("p", { class: "bad", role: "alert" }, error.message));
    }
    said.querySelector(".going")?.remove();
    button.disabled = false;
    stop.hidden = true;
  };
  return { button, stop, said, submit, end };
}
