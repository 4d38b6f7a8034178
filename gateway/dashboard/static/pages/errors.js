// What has failed, by whose fault, in kinds; each leads to its calls.

import { ask } from "../api.js";
import { lines } from "../charts.js";
import { h, table } from "../dom.js";
import * as format from "../format.js";

export const title = "Errors";
export const hasRange = true;

const FAULTS = { failed_upstream: "Upstream's fault", failed_gateway: "Ours", failed_client: "The caller's", turned_away: "Turned away" };

export async function load({ query }) {
  const [found, kinds] = await Promise.all([ask("overview", { range: query.range }), ask("errors", { range: query.range })]);
  return { ...found, kinds };
}

export function draw({ at, step, counts, totals, kinds }, { go, address }) {
  const failed = totals.failed_upstream + totals.failed_gateway + totals.failed_client + totals.turned_away;
  const filter = (row) => [`fault:${row.fault}`, row.error && `error:${row.error}`, `status:${row.status}`, `route:${row.route}`, row.backend && `backend:${row.backend}`].filter(Boolean).join(" ");
  const columns = [
    { title: "Whose fault", of: (row) => row.fault },
    { title: "What", of: (row) => row.error || `status ${row.status}` },
    { title: "Status", number: true, of: (row) => String(row.status) },
    { title: "Route", of: (row) => row.route },
    { title: "Backend", of: (row) => row.backend || "–" },
    { title: "Times", number: true, of: (row) => format.count(row.count), csv: (row) => row.count },
    { title: "First", of: (row) => format.minute(row.first) },
    { title: "Last", of: (row) => format.minute(row.last) },
  ];
  return [
    h("h1", null, failed ? `${format.count(failed)} of ${format.count(totals.calls)} calls have failed.` : "No call has failed."),
    h("div", { class: "grid" }, Object.entries(FAULTS).map(([name, text]) => h("figure", null,
      h("h3", null, text), h("p", { class: "big" }, format.count(totals[name])), h("p", { class: "change" }, format.percent(format.share(totals[name], totals.calls))),
      lines(at, step, [{ values: counts[name] }], format.count, `${text}, by ${step}`)))),
    kinds.rows.length > 0 && [h("h2", null, "Kinds"), table("errors", columns, kinds.rows, { onpick: (row) => go(address("requests", { filter: filter(row) })) })],
    kinds.searched_to !== null && h("p", { class: "fine" }, `Kinds are those since ${format.minute(kinds.searched_to)}.`),
  ];
}
