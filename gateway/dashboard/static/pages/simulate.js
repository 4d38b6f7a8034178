// What would become of more traffic: the newest calls, replayed faster through the policy in force, on stand-ins. For operators.

import { bar, h, table } from "../dom.js";
import * as format from "../format.js";
import { trial } from "../parts.js";

export const title = "Simulate";
export const isForAdmins = true;
export const every_s = 3600;

const ENOUGH = 0.99;
let running = null;

export async function load() {
  return {};
}

/** Who leaves the page ends what is being simulated. */
export function leave() {
  running?.end();
}

export function draw() {
  const span = h("select", { name: "span", "aria-label": "Calls" }, h("option", { value: "1h" }, "the calls of the last hour"), h("option", { value: "24h" }, "the calls of the last 24 hours"));
  running = trial("simulate", "Simulate", () => ({ span: span.value }), results);
  return [
    h("h1", null, "How much more traffic would it hold?"),
    h("p", { class: "fine" }, "Calls that backends have answered come again, faster and faster, through the policy in force: its routes, queues, breakers and balancing, in virtual time. Stand-ins answer, as fast as the ledger shows the backends."),
    h("form", { class: "wide tools", onsubmit: running.submit }, running.button, span, running.stop),
    running.said,
    h("p", { class: "fine" }, "Other policies are tried on the page Policy, other fleets and traces by ", h("code", null, "slipstream simulate"), "."),
  ];
}

function results({ errors, problem, step, progress, loads }) {
  return [
    errors && h("pre", null, errors.join("\n")),
    loads && sentence(loads.results),
    loads && loadTable(loads),
    step && h("div", { class: "going" }, h("p", { class: "fine" }, `${step} …`), bar(0, progress ?? 0)),
    problem && h("p", { class: "bad", role: "alert" }, `■ ${problem}`),
  ].filter(Boolean);
}

function sentence(results) {
  const isFine = (one) => one.slo_share >= ENOUGH;
  const most = results.filter((one, index) => results.slice(0, index + 1).every(isFine)).at(-1);
  return h("p", null, h("strong", null, most ? `With ${most.load} times the traffic, ${format.percent(most.slo_share)} would be in time.` : `Of the traffic as it is, ${format.percent(results[0].slo_share)} are in time on the stand-ins.`));
}

function loadTable({ calls, left_out: leftOut, results }) {
  const columns = [
    { title: "Traffic", of: (row) => `${row.load}×`, csv: (row) => row.load },
    { title: "Calls a second", number: true, of: (row) => format.rate(row.rate_rps), csv: (row) => row.rate_rps },
    { title: "From the exact cache", number: true, of: (row) => format.percent(row.cache_hit_share), csv: (row) => row.cache_hit_share },
    { title: "In time", number: true, of: (row) => format.percent(row.slo_share), csv: (row) => row.slo_share, cell: (row) => [format.percent(row.slo_share), bar(0, row.slo_share, row.slo_share < ENOUGH ? "alert" : "")] },
    { title: "Turned away", number: true, of: (row) => format.percent(row.shed_share), csv: (row) => row.shed_share },
    { title: "Failed", number: true, of: (row) => format.percent(row.failed_share), csv: (row) => row.failed_share },
    { title: "First token, half", number: true, of: (row) => format.ms(row.ttft_p50_s === null ? null : row.ttft_p50_s * 1000), csv: (row) => row.ttft_p50_s },
    { title: "First token, p99", number: true, of: (row) => format.ms(row.ttft_p99_s === null ? null : row.ttft_p99_s * 1000), csv: (row) => row.ttft_p99_s },
    { title: "Time per token, half", number: true, of: (row) => format.ms(row.tpot_p50_ms), csv: (row) => row.tpot_p50_ms },
  ];
  return table("simulated-traffic", columns, results, { caption: `${format.count(calls)} calls${leftOut ? `; ${format.count(leftOut)} are left out, which the policy does not take` : ""}. The semantic cache and prompts that begin alike are not simulated: the ledger has no texts` });
}
