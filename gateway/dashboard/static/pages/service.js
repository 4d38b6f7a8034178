// How long calls take, for long prompts and short ones; whether routes keep their promises, and whether all are served alike.

import { ask } from "../api.js";
import { lines } from "../charts.js";
import { h, table } from "../dom.js";
import * as format from "../format.js";
import { section, small } from "../parts.js";

export const title = "Service";
export const hasRange = true;

const MEASURES = { ttft: "First token", tpot: "Time per token", total: "Whole call" };
const FAST = 14.4;
const MOST = 50;

export async function load({ query }) {
  const asked = { range: query.range };
  const [found, overview] = await Promise.all([ask("service", asked), ask("overview", asked)]);
  return { ...found, overview };
}

export function draw({ times, routes, tenants, priorities, now, overview }) {
  const { totals } = overview;
  const late = format.share(totals.slo_calls - totals.slo_met, totals.slo_calls);
  return [
    h("h1", null, totals.calls ? `${format.count(totals.calls)} calls; ${late === null ? "no route has an SLO" : `${format.percent(late)} of those with a limit were late`}; ${format.percent(totals.turned_away / totals.calls)} turned away.` : "No call has come by."),
    times.prompt?.length > 0 && section("How long calls take, by the length of their prompts", timesTable(times.prompt, "prompt", promptOf)),
    times.route?.length > 0 && section("By route", timesTable(times.route, "route", (name) => name)),
    section("What routes promise", promises(overview), routes.length > 0 ? routeTable(routes, now) : h("p", { class: "fine" }, "No route has an `slo`: none promises anything.")),
    Object.keys(now).length > 0 && section("Room, just now", roomTable(now)),
    tenants.length > 0 && section("Who is served, and how",
      servedTable("tenants", "Tenant", tenants, "Where all are served alike, nobody is late or turned away much more often than others"),
      priorities.some((row) => !["normal", ""].includes(row.name)) && servedTable("priorities", "Priority", priorities, "Who may wait is late and turned away first")),
  ];
}

function promptOf(name) {
  const limits = [1024, 4096, 16384, 65536];
  const at = Number(name);
  const next = limits.find((limit) => limit > at);
  const short = (tokens) => `${tokens / 1024} Ki`;
  return at === 0 ? `under ${short(next)} tokens` : next ? `${short(at)} to ${short(next)}` : `${short(at)} and more`;
}

function timesTable(rows, name, shown) {
  const columns = [{ title: name === "prompt" ? "Prompt" : "Route", of: (row) => shown(row.name) },
    { title: "Calls", number: true, of: (row) => format.count(row.total?.calls), csv: (row) => row.total?.calls },
    ...Object.entries(MEASURES).flatMap(([measure, text]) => ["p50", "p95", "p99"].map((part) => ({ title: `${text} ${part}`, number: true, of: (row) => format.ms(row[measure]?.[part]), csv: (row) => row[measure]?.[part] })))];
  const most = rows.length >= MOST ? `; the ${MOST} routes with the most of them` : "";
  return table(`times-by-${name}`, columns, rows, { caption: `Calls that have failed are left out${most}` });
}

function promises({ at, step, counts, totals }) {
  const late = counts.slo_calls.map((all, index) => (all ? 1 - counts.slo_met[index] / all : null));
  const share = format.share(totals.slo_calls - totals.slo_met, totals.slo_calls);
  const rate = (name) => counts.calls.map((all, index) => format.share(counts[name][index], all));
  return h("div", { class: "grid" },
    small("Late", format.percent(share), "the dashed line is one in a hundred", lines(at, step, [{ values: late }], format.percent, `Late calls by ${step}`, 0.01), share > 0.01),
    small("Turned away", format.percent(format.share(totals.turned_away, totals.calls)), "for want of room in time", lines(at, step, [{ values: rate("turned_away") }], format.percent, `Turned away by ${step}`)),
    small("Failed, upstream's fault", format.percent(format.share(totals.failed_upstream, totals.calls)), "", lines(at, step, [{ values: rate("failed_upstream") }], format.percent, `Upstream's failures by ${step}`)),
    small("Failed, ours", format.percent(format.share(totals.failed_gateway, totals.calls)), "", lines(at, step, [{ values: rate("failed_gateway") }], format.percent, `The gateway's failures by ${step}`)));
}

function routeTable(rows) {
  const late = (row) => format.share(row.slo_calls - row.slo_met, row.slo_calls);
  const burn = (hours) => ({ title: `Burn, ${hours}`, number: true, of: (row) => (row.burn[hours] === undefined ? "–" : `${row.burn[hours].toLocaleString("en-US")}×`), csv: (row) => row.burn[hours],
    cell: (row) => h("span", { class: row.burn[hours] > 1 ? "bad" : "" }, row.burn[hours] === undefined ? "–" : `${row.burn[hours] > FAST ? "■ " : ""}${row.burn[hours].toLocaleString("en-US")}×`) });
  const columns = [
    { title: "Route", of: (row) => row.name },
    { title: "Calls with a limit", number: true, of: (row) => format.count(row.slo_calls), csv: (row) => row.slo_calls },
    { title: "Late", number: true, of: (row) => format.percent(late(row)), csv: late },
    burn("1h"), burn("6h"),
  ];
  return table("promises", columns, rows, { caption: "Burn: how many times as fast as one late call in a hundred allows; the hour that has begun counts with those before it" });
}

function roomTable(now) {
  const rows = Object.entries(now).map(([name, figures]) => ({ name, ...figures }));
  const columns = [
    { title: "Route", of: (row) => row.name },
    { title: "Waiting", number: true, of: (row) => format.count(row.waiting), csv: (row) => row.waiting },
    { title: "Until they are through", number: true, of: (row) => format.ms(row.drain_s === undefined ? null : row.drain_s * 1000) },
    { title: "Turned away since the start", number: true, of: (row) => format.count(row.shed), csv: (row) => row.shed },
    { title: "Backends", number: true, of: (row) => format.count(row.replicas), csv: (row) => row.replicas },
    { title: "Needed", number: true, of: (row) => format.count(row.desired), csv: (row) => row.desired, cell: (row) => h("span", { class: row.desired > row.replicas ? "bad" : "" }, `${row.desired > row.replicas ? "▲ " : ""}${format.count(row.desired)}`) },
  ];
  return table("room", columns, rows);
}

function servedTable(name, title, rows, caption) {
  const whole = rows.reduce((sum, row) => sum + row.input_tokens + row.output_tokens, 0);
  const share = (row) => format.share(row.input_tokens + row.output_tokens, whole);
  const late = (row) => format.share(row.slo_calls - row.slo_met, row.slo_calls);
  const of = (title, part) => ({ title, number: true, of: (row) => format.percent(part(row)), csv: part });
  const columns = [
    { title, of: (row) => row.name || (row.others ? `${row.others} others` : "none") },
    { title: "Calls", number: true, of: (row) => format.count(row.calls), csv: (row) => row.calls },
    of("Share of the tokens", share),
    of("Late", late),
    of("Turned away", (row) => format.share(row.turned_away, row.calls)),
    of("Failed", (row) => format.share(row.failed_gateway + row.failed_upstream, row.calls)),
  ];
  return table(name, columns, rows, { caption });
}
