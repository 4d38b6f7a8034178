// Who answers: how backends are and have been, whether predictions of them hold, what engines hold, who was served instead.

import { ask } from "../api.js";
import { h, table } from "../dom.js";
import * as format from "../format.js";
import { backendTable, section } from "../parts.js";

export const title = "Backends";
export const hasRange = true;
export const isForAll = true;

export async function load({ query }) {
  const [backends, fleet] = await Promise.all([ask("backends", { range: query.range }), ask("fleet")]);
  return { backends, fleet };
}

export function draw({ backends: { rows }, fleet }) {
  const ill = rows.filter((row) => row.now.breaker_open || row.now.probe_up === 0);
  const named = (figures) => Object.entries(figures).map(([name, values]) => ({ name, ...values }));
  return [
    h("h1", null, ill.length ? `${ill.map((row) => row.name).join(", ")} ${ill.length === 1 ? "does" : "do"} not work.` : rows.length === 1 ? "The one backend works." : `All ${rows.length} backends work.`),
    backendTable(rows),
    named(fleet.replicas).length > 0 && section("Predictions, where routes balance by them", replicaTable(named(fleet.replicas))),
    named(fleet.routes).length > 0 && section("Routes, since the start", routeTable(named(fleet.routes))),
    named(fleet.engines).length > 0 && section("Engines of this process", engineTable(named(fleet.engines))),
    fleet.served.length > 0 && section("Which model has answered for which", servedTable(fleet)),
  ];
}

const count = (title, name) => ({ title, number: true, of: (row) => format.count(row[name]), csv: (row) => row[name] });
const share = (title, of) => ({ title, number: true, of: (row) => format.percent(of(row)), csv: of });

function replicaTable(rows) {
  const columns = [
    { title: "Backend", of: (row) => row.name },
    share("First tokens are off by, half", (row) => (row.known ? row.error : null)),
    { title: "Real to predicted, p95", number: true, of: (row) => (row.known ? `${row.residual.toFixed(2)}×` : "–"), csv: (row) => (row.known ? row.residual : null) },
    count("Tokens in hand", "tokens"),
    share("Prompt tokens thought to be there", (row) => format.share(row.prompt_matched ?? 0, row.prompt_all ?? 0)),
    count("Blocks thought to be there", "blocks"),
  ];
  return table("predictions", columns, rows);
}

function routeTable(rows) {
  const columns = [
    { title: "Route", of: (row) => row.name },
    count("Backends", "replicas"), count("Needed", "desired"), count("Retries", "retries"), count("Answered by another route", "fallbacks"),
    { title: "Hedges won", number: true, of: (row) => (row.hedges ? `${format.count(row.hedges_won ?? 0)} of ${format.count(row.hedges)}` : "–"), csv: (row) => row.hedges_won },
    share("Drafts accepted", (row) => format.share(row.drafted_accepted ?? 0, (row.drafted_accepted ?? 0) + (row.drafted_rejected ?? 0))),
    { title: "Inputs a batch", number: true, of: (row) => (row.batches ? (row.batched / row.batches).toFixed(1) : "–"), csv: (row) => (row.batches ? row.batched / row.batches : null) },
  ];
  return table("routes", columns, rows);
}

function engineTable(rows) {
  const columns = [
    { title: "Engine", of: (row) => row.name },
    count("Running", "running"), count("Waiting", "waiting"),
    share("Keys and values", (row) => row.kv_used),
    share("Prompts found", (row) => format.share(row.prefix_hits ?? 0, row.prefix_asked ?? 0)),
    share("Drafts accepted", (row) => format.share(row.accepted ?? 0, row.drafted ?? 0)),
    { title: "Answers a step", number: true, of: (row) => (row.steps ? (row.step_answers / row.steps).toFixed(1) : "–"), csv: (row) => (row.steps ? row.step_answers / row.steps : null) },
  ];
  return table("engines", columns, rows);
}

function servedTable({ served, newest }) {
  const columns = [
    { title: "Asked for", of: (row) => row.model },
    { title: "Answered by", of: (row) => row.served, cell: (row) => (row.served === row.model ? row.served : h("strong", null, row.served)) },
    { title: "Backend", of: (row) => row.backend || "–" },
    count("Calls", "calls"),
  ];
  return table("served", columns, served, { caption: `Of the newest ${newest.toLocaleString("en-US")} rows; other names than were asked for come first` });
}
