// How often caches have answered, how sure the semantic one is, and its entries, for who looks after it.

import { ask, tell } from "../api.js";
import { bar, h, spark, table } from "../dom.js";
import * as format from "../format.js";
import { form, points, rates, section, share, small } from "../parts.js";

export const title = "Caches";
export const hasRange = true;

export async function load({ rest, query, me }) {
  if (rest) return { entry: await ask(`cache/entries/${encodeURIComponent(rest)}`) };
  const found = await ask("caches", { range: query.range });
  const page = found.has_entries ? await ask("cache/entries", { limit: 50, tag: query.tag, model: query.model, after: query.after }) : null;
  return { found, page, me };
}

export function draw({ entry, found, page }, context) {
  if (entry) return details(entry, context);
  return [sentence(found), hint(found), trials(found), hitRates(found), routes(found), providers(found), page && entries(page, context)];
}

function sentence({ totals }) {
  const answered = totals.hits + totals.joined + totals.semantic;
  if (!totals.looked_up) return h("h1", null, "No call has met a cache.");
  return h("h1", null, `Caches have answered ${format.percent(answered / totals.looked_up)} of the ${format.count(totals.looked_up)} calls that they were asked for.`);
}

/** What to do about it. */
function hint({ totals }) {
  return !totals.looked_up && h("p", { class: "fine" }, "A route has one where the policy says so, as in ", h("code", null, "cache: {exact: {ttl: 1h}}"), ".");
}

/** What would have become of routes that only observe. */
function trials({ observed }) {
  const said = Object.entries(observed);
  return said.length > 0 && h("div", null, said.map(([route, says]) => h("p", null, h("strong", null, `Route ${route}.`), ` ${says}`)));
}

function hitRates(found) {
  const { totals, totals_before: before } = found;
  const figure = (name, part, whole = "looked_up") => {
    const now = share(totals, [part], whole);
    return small(name, format.percent(now), points(now, share(before, [part], whole)), rates(found, name, [part], whole));
  };
  return section("Hit rates", h("div", { class: "grid" },
    figure("Exact", "hits"), figure("Joined a call in flight", "joined"), figure("Semantic", "semantic"), figure("Providers' own, by tokens", "cached_tokens", "input_tokens")));
}

/** A static threshold learns nothing, so nobody knows how often it is wrong. */
function isMeasured(figures) {
  return figures?.at_most !== undefined && (figures.bound !== undefined || figures.labels > 0);
}

/** Likely and at most wrong, beside the bound, on one scale. */
function certainty(figures) {
  if (!isMeasured(figures)) return figures?.at_most === undefined ? "–" : "not measured";
  const isOver = figures.at_most > figures.bound;
  const bound = figures.bound === undefined ? "no bound" : `bound ${format.percent(figures.bound)}`;
  const most = Math.max(figures.at_most, figures.bound ?? 0, 1e-9) * 1.1;
  return [h("span", { class: isOver ? "bad" : "" }, `${isOver ? "■ " : ""}${format.percent(figures.likely)}, at most ${format.percent(figures.at_most)}; ${bound}`),
    bar(figures.likely / most, figures.at_most / most, isOver ? "alert" : "", figures.bound === undefined ? null : figures.bound / most)];
}

/** Nobody may be sure of a route any more, as after a restart, and have been sure of it before. */
function overTime(past, sure) {
  if (!past || (sure && !isMeasured(sure))) return "–";
  const told = past.filter((value) => value !== null);
  return [spark(past.map((value) => value ?? 0), sure?.bound ?? 0), sure ? null : ` ${format.percent(told.at(-1))}`];
}

function routes({ routes: rows, semantic, wrong_at_most: past }) {
  const names = [...new Set([...rows.map((row) => row.name), ...Object.keys(semantic)])];
  if (!names.length) return null;
  const known = Object.fromEntries(rows.map((row) => [row.name, row]));
  const all = names.map((name) => ({ name, looked_up: 0, hits: 0, joined: 0, semantic: 0, ...known[name], sure: semantic[name] }));
  const isTold = Object.keys(semantic).length > 0;
  const rate = (part) => (row) => format.percent(format.share(row[part], row.looked_up));
  const state = ({ sure }) => (!sure ? "–" : sure.in_doubt ? "in doubt: nothing is served" : sure.labels === undefined ? "–" : `${format.count(sure.labels)} labels`);
  const columns = [
    { title: "Route", of: (row) => row.name },
    { title: "Met a cache", number: true, of: (row) => format.count(row.looked_up), csv: (row) => row.looked_up },
    { title: "Exact", number: true, of: rate("hits"), csv: (row) => row.hits },
    { title: "Joined", number: true, of: rate("joined"), csv: (row) => row.joined },
    { title: "Semantic", number: true, of: rate("semantic"), csv: (row) => row.semantic },
    ...(isTold ? [{ title: "Semantic, wrong answers per look-up", of: ({ sure }) => (!isMeasured(sure) ? "–" : `${sure.likely}, at most ${sure.at_most}, bound ${sure.bound ?? "none"}`), cell: (row) => certainty(row.sure) }] : []),
    ...(isTold || Object.keys(past).length ? [{ title: isTold ? "At most, over time" : "Semantic, wrong answers at most", of: () => "", cell: (row) => overTime(past[row.name], row.sure) }] : []),
    ...(isTold ? [{ title: "Has learned from", of: state }] : []),
  ];
  return section("By route", table("caches-by-route", columns, all));
}

function providers({ models }) {
  const rows = models.filter((row) => row.input_tokens);
  if (!rows.length) return null;
  const rate = (of) => (of ? format.share(of.cached_tokens, of.input_tokens) : null);
  const columns = [
    { title: "Model", of: (row) => row.name },
    { title: "Prompt tokens", number: true, of: (row) => format.count(row.input_tokens), csv: (row) => row.input_tokens },
    { title: "Kept by the provider", number: true, of: (row) => format.count(row.cached_tokens), csv: (row) => row.cached_tokens },
    { title: "Share", of: (row) => format.percent(rate(row)), cell: (row) => [format.percent(rate(row)), bar(0, rate(row))] },
    { title: "Change", number: true, of: (row) => points(rate(row), rate(row.before)) || "–" },
    { title: "Saved", number: true, of: (row) => format.usd(row.saved), csv: (row) => row.saved },
  ];
  return section("Providers' prompt caches, by tokens", table("prompt-caches", columns, rows));
}

function entries(page, context) {
  const { query, go, address, me } = context;
  const where = Object.fromEntries(["tag", "model"].filter((name) => query[name]).map((name) => [name, query[name]]));
  const field = (name, label) => h("label", { class: "fine" }, label, " ", h("input", { name, value: query[name] ?? "" }));
  const search = (event) => {
    event.preventDefault();
    document.activeElement?.blur();
    go(address("caches", Object.fromEntries(new FormData(event.target))));
  };
  const remove = async () => {
    if (!confirm(`Delete all entries with ${Object.entries(where).map(([name, value]) => `${name} ${value}`).join(" and ")}?`)) return;
    await tell(`cache/entries?${new URLSearchParams(where)}`, {}, "DELETE");
    context.again();
  };
  const columns = [
    { title: "Question", of: (row) => row.text },
    { title: "Model", of: (row) => row.model },
    { title: "Asked by", of: (row) => row.owner || "–" },
    { title: "Served", number: true, of: (row) => format.count(row.served), csv: (row) => row.served },
    { title: "Found right", number: true, of: (row) => format.count(row.good), csv: (row) => row.good },
    { title: "Found wrong", number: true, of: (row) => format.count(row.bad), csv: (row) => row.bad },
    { title: "Expires", of: (row) => format.minute(row.expires) },
  ];
  return section("Entries of the semantic cache",
    whyForm(me, context),
    h("form", { class: "tools", onsubmit: search, role: "search" }, field("tag", "Tag"), field("model", "Model"), h("button", { class: "action" }, "Find"),
      Object.keys(where).length > 0 && page.data.length > 0 && h("button", { class: "quiet", type: "button", onclick: remove }, "Delete all of these")),
    page.data.length
      ? table("entries", columns, page.data, { onpick: (row) => go(address(`caches/${row.id}`)) })
      : h("p", { class: "fine" }, Object.keys(where).length ? "There are no such entries." : "Nothing is stored yet."),
    page.has_more && h("button", { class: "action", onclick: () => go(address("caches", { ...where, after: page.last_id })) }, "More"));
}

/** What would become of a question, and why. Nothing is served or counted. */
function whyForm(me, context) {
  const answer = h("div", { class: "explained", "aria-live": "polite" });
  const fields = [["model", "Model", me.models[0] ?? ""], ["question", "A question, or a whole chat request as JSON", "", "long"], ...(me.has_keys ? [["as_key", "As the key of the policy file (empty: your own)", ""]] : [])];
  const send = async ({ model, question, as_key: key }) => {
    answer.replaceChildren();
    const body = question.trim().startsWith("{") ? parsed(question) : { model, temperature: 0, messages: [{ role: "user", content: question }] };
    answer.replaceChildren(...explained(await tell("cache/explain", { ...body, ...(key ? { as_key: key } : {}) }), context));
  };
  const box = form("Why is a question answered from here, or not?", fields, "Explain", send);
  box.append(answer);
  return box;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}`);
  }
}

function explained(said, context) {
  if (!said.eligible) return [h("p", null, `Route ${said.route}: it is never looked up (${said.reason}).`)];
  const columns = [
    { title: "Stored question", of: (row) => row.text },
    { title: "Likeness", number: true, of: (row) => String(row.similarity) },
    { title: "Served", number: true, of: (row) => format.count(row.served), csv: (row) => row.served },
    { title: "Found right", number: true, of: (row) => format.count(row.good), csv: (row) => row.good },
    { title: "Found wrong", number: true, of: (row) => format.count(row.bad), csv: (row) => row.bad },
  ];
  return [
    h("p", null, h("strong", null, said.decision?.serve ? "It would be served." : "It would not be served."), ` Route ${said.route}; ${said.reason}.`, reckoned(said)),
    said.candidates?.length ? table("candidates", columns, said.candidates, { onpick: (row) => context.go(context.address(`caches/${row.entry}`)) }) : h("p", { class: "fine" }, "No stored question is near."),
  ];
}

/** The score that a proposal had, and what it had to reach; also of an answer that was served. */
export function reckoned({ decision, proposal }) {
  if (!decision) return "";
  const had = decision.score === null ? "" : ` Its score is ${decision.score.toFixed(2)}`;
  const wanted = decision.threshold === null ? "; no score would do yet." : `; ${decision.threshold.toFixed(2)} is needed.`;
  return `${had}${had && wanted}${proposal?.guarded ? " Words differ that change the meaning." : ""}`;
}

/** Buttons that tell the cache what somebody thinks of an answer. */
export function judged(about, context) {
  const said = h("span", { class: "fine", role: "status" });
  const judge = (isRight) => async () => {
    try {
      const { learned } = await tell("cache/feedback", { ...about, ok: isRight });
      said.textContent = learned ? "Noted; the decision has learned from it." : "Noted in the entry's history.";
    } catch (error) {
      said.textContent = error.message;
    }
  };
  return h("div", { class: "tools" }, h("button", { class: "action", onclick: judge(true) }, "The answer is right"), h("button", { class: "action", onclick: judge(false) }, "The answer is wrong"), said);
}

function details(entry, context) {
  const { link, address, go } = context;
  const facts = { model: entry.model, "asked by": entry.owner, tags: entry.tags.join(", "), stored: format.moment(entry.created), expires: format.moment(entry.expires), served: format.count(entry.served), "found right": format.count(entry.good), "found wrong": format.count(entry.bad), "confirmed by somebody else": entry.confirmed_by_other ? "yes" : "no", id: entry.id };
  const remove = async () => {
    if (!confirm("Delete this entry?")) return;
    await tell(`cache/entries/${encodeURIComponent(entry.id)}`, {}, "DELETE");
    go(address("caches"));
  };
  return [
    h("p", null, link(address("caches"), null, "All caches")),
    h("h1", null, entry.text),
    h("pre", null, entry.answer),
    judged({ entry: entry.id }, context), h("div", { class: "tools" }, h("button", { class: "quiet", onclick: remove }, "Delete this entry")),
    h("h2", null, "The entry"),
    h("dl", { class: "facts" }, Object.entries(facts).filter(([, value]) => value).map(([name, value]) => [h("dt", null, name), h("dd", null, value)])),
  ];
}
