// The first page: one sentence, what needs somebody, then money, caches, service and backends.

import { Failure, ask } from "../api.js";
import { bars, lines, mark } from "../charts.js";
import { bar, h, table } from "../dom.js";
import * as format from "../format.js";
import { notesOf } from "../notes.js";
import { backendTable, points, rates, section, share, small } from "../parts.js";
import { tryIt } from "../try_it.js";

export const title = "Overview";
export const hasRange = true;

const SPANS = { "1h": ["in the last hour", "in the same hour last week"], "24h": ["in 24 hours", "in the same 24 hours last week"], "7d": ["in 7 days", "in the 7 days before"], "30d": ["in 30 days", "in the 30 days before"], month: ["this month", "in as many days of the month before"] };
const CAUSES = { exact: "Exact cache", joined: "Joined calls", semantic: "Semantic cache", prompt: "Prompt cache, asked for", provider: "Prompt cache, provider's own", cheaper: "Cheaper backend", batch: "Batch price", share: "Shared calls", extra: "Checks, hedges, failed attempts" };
const MOST_BACKENDS = 20;
const BY = { model: "By model", backend: "By backend", route: "By route", tenant: "By tenant", key: "By key", agent: "By program" };

/** All that the page shows; backends and budgets only for who may see them. */
export async function load({ query, me }) {
  const asked = { range: query.range, by: query.by, only: query.only };
  const [found, backends, budgets] = await Promise.all([
    ask("overview", asked),
    me.tenant === null && !query.only ? ask("backends", { range: query.range }) : null,
    ask("budgets").catch((error) => {
      if (error instanceof Failure && error.status >= 500) return { rows: [] };
      throw error;
    }),
  ]);
  return { ...found, backends, budgets: budgets.rows };
}

export function draw(found, context) {
  if (found.is_empty) return empty(found, context);
  mark(found.marks);
  return [
    sentence(found, context),
    notes(found, context),
    money(found, context),
    caches(found, context),
    service(found, context),
    found.backends && fleet(found.backends.rows, context),
  ];
}

function empty(found, context) {
  return [
    h("h1", null, "Nothing has come by yet."),
    h("p", { class: "fine" }, "As soon as a call has passed through this gateway, this page shows what it cost, what was saved, and how long it took."),
    tryIt(context),
  ];
}

function sentence(found, { query, go, address }) {
  const { spent, before, saved, unknown, charges } = found.money;
  const [span, spanBefore] = SPANS[found.range];
  const more = format.compared(Number(spent), Number(before), spanBefore);
  const missing = unknown ? ` The price of ${format.count(unknown)} of ${format.count(charges)} charges is unknown.` : "";
  const savedText = Number(saved) < 0 ? ` ${format.usd(String(-Number(saved)))} more than without the gateway.` : ` ${format.usd(saved)} saved.`;
  return [
    h("h1", null, charges ? `${format.usd(spent)} spent ${span}${more}.${savedText}${missing}` : `No call has come by ${span}.`),
    query.only && h("p", null, h("span", { class: "chip" }, query.only.endsWith(":") ? `${query.only}none` : query.only, " ", h("button", { class: "quiet", onclick: () => go(address("", { only: null })) }, "show all"))),
  ];
}

function notes(found, { link, address }) {
  const all = notesOf(found);
  if (!all.length) return h("p", { class: "fine" }, "Nothing needs you.");
  return h("ul", { class: "notes" }, all.slice(0, 5).map((note) =>
    h("li", null, h("span", { class: "sign", "aria-hidden": "true" }, "▲"), note.page ? link(address(note.page), null, note.text) : note.text)));
}

function money(found, context) {
  const { at, step, cost, cost_before: before, money: sums } = found;
  const spanBefore = SPANS[found.range][1];
  const by = format.change(Number(sums.spent), Number(sums.before));
  const text = `Spent by ${step}: ${at.map((moment, index) => `${format.step(moment, step, true)} ${format.usd(cost[index])}`).join(", ")}`;
  const figure = h("figure", null,
    h("h3", null, `Spent, by ${step}`),
    h("p", { class: "big" }, format.usd(sums.spent)),
    h("p", { class: "change" }, sums.before === null ? "" : [by, `the short lines: ${spanBefore}`].filter(Boolean).join("; ")),
    bars(at, step, cost.map(Number), before.map((value) => (value === null ? null : Number(value))), short, text),
    // Of some of the calls: no budget is theirs.
    month(sums.month, context.query.only ? [] : found.budgets));
  return section("Money", h("div", { class: "grid money" }, figure, ranked(found, context), saved(sums)));
}

function short(value) {
  return value >= 10 ? `$${Math.round(value).toLocaleString("en-US")}` : format.usd(String(value));
}

function month(forecast, budgets) {
  if (!forecast) return null;
  const whole = budgets.find((budget) => budget.every === "month" && budget.who === "");
  const limit = whole ? Number(whole.usd) + Number(whole.raised_usd) : null;
  const name = format.month(forecast.name);
  const soFar = Number(forecast.so_far);
  const likely = forecast.likely === undefined ? null : Number(forecast.likely);
  const most = limit ?? (likely === null ? soFar : Number(forecast.most));
  return h("div", null,
    h("p", { class: "fine" },
      likely === null ? `${name}: ${format.usd(forecast.so_far)} so far; what it will come to can be told after a week.` : h("span", null, h("strong", null, `${name}: about ${format.usd(forecast.likely)}`), limit === null ? "" : ` of ${format.usd(String(limit))}`, ` (${format.usd(forecast.least)} to ${format.usd(forecast.most)}); ${format.usd(forecast.so_far)} so far.`)),
    most > 0 && bar(0, soFar / most, limit !== null && (likely ?? soFar) > limit ? "alert" : ""));
}

function ranked(found, { query, go, address }) {
  const by = query.by ?? "model";
  const rows = found.money.by;
  const choose = h("select", { class: "plain", "aria-label": "Told apart by", onchange: (event) => go(address("", { by: event.target.value })) },
    Object.entries(BY).map(([name, text]) => h("option", { value: name, selected: name === by }, text)));
  const [shown, rest] = [rows.slice(0, 6), rows.slice(6)];
  const others = rest.reduce((sum, row) => ({ cost: String(Number(sum.cost) + Number(row.cost ?? 0)), before: null }), { cost: "0" });
  const most = Math.max(...[...shown, others].map((row) => Number(row.cost ?? 0)), 1e-12);
  const item = (name, row, onclick) => h("li", null,
    h("div", { class: "row" },
      onclick ? h("button", { class: "name", title: `Only ${name || "none"}`, onclick }, name || "none") : h("span", { class: "name" }, name),
      h("span", { title: row.unknown ? `the price of ${row.unknown} charges is unknown` : null }, format.usd(row.cost), row.unknown > 0 && row.cost !== null && " + ?"),
      h("span", { class: "change" }, format.change(Number(row.cost), Number(row.before)))),
    bar(0, Number(row.cost ?? 0) / most));
  const numOthers = rest.reduce((sum, row) => sum + (row.others ?? 1), 0);
  const columns = [
    { title: BY[by].slice(3), of: (row) => row.name || (row.others ? `${row.others} others` : "none") },
    { title: "spent usd", number: true, of: (row) => format.usd(row.cost), csv: (row) => row.cost },
    { title: "before usd", number: true, of: (row) => (row.before === null ? "–" : format.usd(row.before)), csv: (row) => row.before },
    { title: "saved usd", number: true, of: (row) => format.usd(row.saved), csv: (row) => row.saved },
    { title: "calls", number: true, of: (row) => format.count(row.calls), csv: (row) => row.calls },
    { title: "prompt tokens", number: true, of: (row) => format.count(row.input_tokens), csv: (row) => row.input_tokens },
    { title: "answer tokens", number: true, of: (row) => format.count(row.output_tokens), csv: (row) => row.output_tokens },
  ];
  return h("div", null, choose,
    h("ul", { class: "ranked" },
      shown.map((row) => item(row.name, row, () => go(address("", { only: `${by}:${row.name}` })))),
      rest.length > 0 && item(`${numOthers.toLocaleString("en-US")} others`, others, null)),
    h("details", null, h("summary", { class: "fine" }, "All as a table"), table(`spent-by-${by}`, columns, rows)));
}

function saved(sums) {
  const list = Number(sums.list);
  const whole = Math.max(list, Number(sums.spent), 1e-12);
  let left = list;
  const rows = Object.entries(sums.causes).filter(([, amount]) => Number(amount) !== 0).map(([cause, amount]) => {
    const before = left;
    left -= Number(amount);
    return h("li", null,
      h("div", { class: "row" }, h("span", { class: "name" }, CAUSES[cause]), h("span", null, added(amount))),
      bar(Math.min(before, left) / whole, Math.max(before, left) / whole, Number(amount) < 0 ? "alert" : ""));
  });
  const line = (name, amount) => h("li", { class: "whole" }, h("div", { class: "row" }, h("span", { class: "name" }, name), h("span", null, format.usd(amount))), bar(0, Number(amount) / whole, "rest"));
  return h("div", null, h("h3", null, "What was saved, and by what"),
    h("ul", { class: "ranked" }, line("At list price, no gateway", sums.list), rows, line("Paid", sums.spent)));
}

/** What a saving adds to what is paid, with its sign. */
function added(saved) {
  return saved.startsWith("-") ? `+${format.usd(saved.slice(1))}` : format.usd(`-${saved}`);
}

function caches(found, { link, address }) {
  const { totals, totals_before: before, wrong } = found;
  const exact = share(totals, ["hits", "joined"], "looked_up");
  const semantic = share(totals, ["semantic"], "looked_up");
  const cached = share(totals, ["cached_tokens"], "input_tokens");
  const worst = Object.entries(wrong).sort(([, one], [, other]) => (other.at_most ?? 0) - (one.at_most ?? 0))[0];
  return section(link(address("caches", { only: null }), null, "Caches"), h("div", { class: "grid" },
    small("Exact and joined", format.percent(exact), totals.looked_up ? [points(exact, share(before, ["hits", "joined"], "looked_up")), totals.joined > 0 && `joined ${format.percent(totals.joined / totals.looked_up)}`].filter(Boolean).join("; ") : "no call met a cache", rates(found, "Exact and joined hits", ["hits", "joined"], "looked_up")),
    small("Semantic", format.percent(semantic), points(semantic, share(before, ["semantic"], "looked_up")), rates(found, "Semantic hits", ["semantic"], "looked_up")),
    worst
      ? small("Semantic, wrong answers", format.percent(worst[1].likely ?? null), `at most ${format.percent(worst[1].at_most)}, bound ${format.percent(worst[1].bound ?? null)} (${worst[0]})`, null, worst[1].at_most > worst[1].bound)
      : small("Semantic, wrong answers", "–", "no semantic cache has been asked", null),
    small("Provider's cache, by tokens", format.percent(cached), points(cached, share(before, ["cached_tokens"], "input_tokens")), rates(found, "Prompt tokens that providers had kept", ["cached_tokens"], "input_tokens"))));
}

/** All of a small one; of a large one those that do not work, and then the busiest. */
function fleet(rows, { link, address }) {
  const isIll = (row) => Number(Boolean(row.now.breaker_open) || row.now.probe_up === 0);
  const calls = (row) => row.calls.reduce((sum, step) => sum + step, 0);
  const all = address("backends", { only: null });
  const few = rows.length > MOST_BACKENDS ? [...rows].sort((one, other) => isIll(other) - isIll(one) || calls(other) - calls(one)).slice(0, MOST_BACKENDS) : rows;
  return section(link(all, null, "Backends"), backendTable(few), few !== rows && h("p", { class: "fine" }, link(all, null, `All ${format.count(rows.length)} backends`)));
}

function service({ at, step, counts, totals, totals_before: before, times, shares: tenants }, { link, address }) {
  const failed = (of) => of.failed_gateway + of.failed_upstream;
  const latency = (name, measure) => {
    const of = times[measure];
    if (!of) return small(name, "–", measure === "total" ? "no call" : "no streamed call", null);
    const series = [["p50", "mid"], ["p95", "mark"], ["p99", "before"]].map(([key, color]) => ({ values: of[key], color, name: key, isMain: key === "p95" }));
    return small(name, format.ms(of.whole.p95), `p95; half ${format.ms(of.whole.p50)}, p99 ${format.ms(of.whole.p99)}`, lines(at, step, series, format.ms, `${name}: p50, p95 and p99 by ${step}`));
  };
  const late = totals.slo_calls ? 1 - totals.slo_met / totals.slo_calls : null;
  const rateOf = (name, part) => lines(at, step, [{ values: counts.calls.map((all, index) => format.share(part(index), all)), color: "mark" }], format.percent, `${name} by ${step}`);
  const failedShare = format.share(failed(totals), totals.calls);
  const whole = tenants.reduce((sum, tenant) => sum + tenant.tokens, 0);
  return section(link(address("service", { only: null }), null, "Service"), h("div", { class: "grid" },
    small("Requests", format.count(totals.calls), before ? format.change(totals.calls, before.calls) : "", lines(at, step, [{ values: counts.calls }], format.count, `Requests by ${step}`)),
    latency("First token", "ttft"),
    latency("Time per token", "tpot"),
    latency("Whole call", "total"),
    small("Tokens", format.count(totals.input_tokens + totals.output_tokens), `${format.percent(format.share(totals.input_tokens, totals.input_tokens + totals.output_tokens))} of them prompt`,
      lines(at, step, [{ values: counts.input_tokens, name: "prompt" }, { values: counts.output_tokens, color: "before", name: "answer" }], format.count, `Prompt and answer tokens by ${step}`)),
    small("Late (outside the SLO)", format.percent(late), totals.slo_calls ? `of ${format.count(totals.slo_calls)} calls with a limit` : "no route has an SLO",
      lines(at, step, [{ values: counts.slo_calls.map((all, index) => (all ? 1 - counts.slo_met[index] / all : null)) }], format.percent, `Late calls by ${step}`)),
    small("Failed", format.percent(failedShare), totals.calls ? `${format.count(totals.failed_upstream)} upstream's fault, ${format.count(totals.failed_gateway)} ours` : "",
      rateOf("Failed calls", (index) => counts.failed_gateway[index] + counts.failed_upstream[index]), failedShare > 0.01),
    tenants.length > 1
      ? h("div", null, h("h3", null, "Share of the work, by tenant"), h("ul", { class: "ranked" }, tenants.map((tenant) => h("li", null,
        h("div", { class: "row" }, h("span", { class: "name" }, tenant.name), h("span", null, format.percent(tenant.tokens / whole))), bar(0, tenant.tokens / whole)))))
      : small("Turned away", format.percent(format.share(totals.turned_away, totals.calls)), "for want of room in time", rateOf("Calls turned away", (index) => counts.turned_away[index]))));
}
