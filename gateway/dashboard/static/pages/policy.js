// The policy in force, what the last change was, and what another one would do. For operators.

import { ask } from "../api.js";
import { bar, h, table } from "../dom.js";
import * as format from "../format.js";
import { section, trial } from "../parts.js";

export const title = "Policy";
export const isForAdmins = true;
export const every_s = 60;

let running = null;

export async function load() {
  return { policy: await ask("policy") };
}

/** Who leaves the page ends what was being tried. */
export function leave() {
  running?.end();
}

export function draw({ policy }, context) {
  const { revision, since, before, refused, texts } = policy;
  return [
    h("h1", null, `Policy ${revision}, in force since ${format.minute(since)}.`),
    refused && refusal(refused),
    texts === null ? h("p", { class: "fine" }, "It is too long to be shown here, or to try another one: more than 256 KiB.") : shown(texts, before, context),
  ];
}

function refusal({ at, errors }) {
  return h("div", null, h("p", { class: "bad" }, `■ Changed at ${format.moment(at)}, and not taken over:`), h("pre", null, errors.join("\n")));
}

function shown(texts, before, context) {
  if (texts.problem) return h("p", { class: "bad" }, `■ ${texts.problem}`);
  if (texts.errors) return h("pre", null, texts.errors.join("\n"));
  return [
    section("The last change", before
      ? [h("p", { class: "fine" }, `Before it was ${before.revision}, since ${format.minute(before.since)}.`), texts.diff === null ? h("p", { class: "fine" }, "That one can no longer be read.") : difference(texts.diff)]
      : h("p", { class: "fine" }, "None since this process has started.")),
    section("What would a change do?", trialForm(texts.written, context)),
    section("In force", h("details", null, h("summary", null, "As it is written"), h("pre", null, texts.written)),
      texts.effective !== null && h("details", null, h("summary", null, "With every default filled in"), h("pre", null, texts.effective))),
  ];
}

/** Lines that went and came, each with its sign. */
function difference(lines) {
  if (!lines.length) return h("p", { class: "fine" }, "Nothing that counts is different.");
  const kinds = { "+": "good", "-": "bad", "@": "fine" };
  return h("pre", null, lines.map((line) => h("span", { class: kinds[line[0]] ?? null }, `${line}\n`)));
}

function trialForm(written, { again }) {
  const text = h("textarea", { name: "text", rows: 16, spellcheck: "false", "aria-label": "A policy" }, written);
  const span = h("select", { name: "span", "aria-label": "Calls" }, h("option", { value: "1h" }, "the calls of the last hour"), h("option", { value: "24h" }, "the calls of the last 24 hours"), h("option", { value: "" }, "no calls: check it only"));
  running = trial("policy/try", "Try it on", () => ({ text: text.value, span: span.value }), results);
  return h("div", null,
    h("p", { class: "fine" }, "Nothing here changes anything: the policy is that of its file."),
    h("form", { class: "wide", onsubmit: running.submit }, text, h("div", { class: "tools" }, running.button, span, running.stop, h("button", { class: "quiet", type: "button", onclick: again }, "Begin anew"))),
    running.said);
}

function results(found) {
  if (found.errors) return [h("p", { class: "bad" }, `■ ${found.errors.length === 1 ? "It has a problem" : `It has ${found.errors.length} problems`}:`), h("pre", null, found.errors.join("\n"))];
  return [
    found.revision && h("p", null, h("span", { class: "good" }, "● It is fine"), `, and would be revision ${found.revision}.`),
    found.warnings?.length > 0 && h("pre", null, found.warnings.map((warning) => `warning: ${warning}`).join("\n")),
    found.diff && difference(found.diff),
    found.moves && moves(found.moves),
    found.step && !found.simulated && !found.problem && h("div", { class: "going" }, h("p", { class: "fine" }, `${found.step} …`), bar(0, found.progress ?? 0)),
    found.problem && h("p", { class: "bad", role: "alert" }, `■ ${found.problem}`),
    found.simulated && simulated(found.simulated),
  ].filter(Boolean);
}

function moves(rows) {
  const moved = rows.filter((row) => row.from !== row.to);
  const all = rows.reduce((sum, row) => sum + row.calls, 0);
  if (!moved.length) return h("p", null, `All ${format.count(all)} calls would take the routes that they have taken.`);
  const columns = [
    { title: "Route now", of: (row) => row.from ?? "none" },
    { title: "Route then", of: (row) => row.to ?? "none: refused" },
    { title: "Calls", number: true, of: (row) => format.count(row.calls), csv: (row) => row.calls },
  ];
  return table("moved-calls", columns, moved, { caption: `${format.count(moved.reduce((sum, row) => sum + row.calls, 0))} of ${format.count(all)} calls would take another route` });
}

const FIGURES = [
  ["Cost, at the policy's own prices", (one) => (one.unknown ? `${format.usd(one.cost)} + ?` : format.usd(one.cost))],
  ["Answered by the exact cache", (one) => format.percent(one.cache_hit_share)],
  ["In time", (one) => format.percent(one.slo_share)],
  ["Turned away", (one) => format.percent(one.shed_share)],
  ["Failed", (one) => format.percent(one.failed_share)],
  ["First token, half", (one) => format.ms(one.ttft_p50_s === null ? null : one.ttft_p50_s * 1000)],
  ["First token, p99", (one) => format.ms(one.ttft_p99_s === null ? null : one.ttft_p99_s * 1000)],
  ["Time per token, half", (one) => format.ms(one.tpot_p50_ms)],
];

function simulated({ calls, left_out: leftOut, span_s: span, results: [now, then] }) {
  const names = [...new Set([...Object.keys(now.backends), ...Object.keys(then.backends)])].sort();
  const rows = [...FIGURES.map(([name, of]) => ({ name, now: of(now), then: of(then) })),
    ...names.map((name) => ({ name: `Calls to ${name}`, now: format.count(now.backends[name] ?? 0), then: format.count(then.backends[name] ?? 0) }))];
  const columns = [
    { title: "", of: (row) => row.name },
    { title: "The policy in force", number: true, of: (row) => row.now },
    { title: "The other one", number: true, of: (row) => row.then },
  ];
  return h("div", null,
    table("simulated", columns, rows, { caption: `${format.count(calls)} calls of ${format.count(span / 60)} minutes, replayed in virtual time on stand-ins as fast as the backends were` }),
    h("p", { class: "fine" }, leftOut ? `${format.count(leftOut)} calls are left out, which one of the two does not take. ` : "", "Both columns are simulated. The ledger has no texts: what the exact cache has answered is taken to repeat the last call of as many tokens; the semantic cache and prompts that begin alike are not simulated."));
}
