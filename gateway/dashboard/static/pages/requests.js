// Calls, the newest first: looked for by any column; one of them with all that was charged for it.

import { Failure, ask } from "../api.js";
import { bar, h, table } from "../dom.js";
import * as format from "../format.js";
import { judged, reckoned } from "./caches.js";

export const title = "Requests";
export const every_s = 2;

const NAMES = ["request_id", "at", "tenant", "team", "key", "user", "session", "agent", "tags", "route", "operation", "backend", "model", "served", "stream", "cache", "status", "end", "error", "fault", "estimated", "price"];
const TOKENS = ["input_tokens", "cached_tokens", "written_5m_tokens", "written_1h_tokens", "output_tokens", "reasoning_tokens", "audio_tokens", "image_tokens", "drafted_tokens", "accepted_tokens"];

export async function load({ rest, query, me }) {
  if (rest) {
    const one = await ask(`requests/${encodeURIComponent(rest)}`);
    return { one, served: me.is_admin && one.call.cache === "semantic" ? await servedFrom(one.call) : null };
  }
  return { page: await found({ filter: query.filter, before: query.before }) };
}

export function draw({ one, served, page }, context) {
  return one ? details(one, served, context) : list(page, context);
}

/** The calls; none, with the problem, where the filter is not understood. */
async function found(asked) {
  try {
    return await ask("requests", asked);
  } catch (error) {
    if (error instanceof Failure && error.status === 400) return { rows: [], next: null, problem: error.message };
    throw error;
  }
}

/** Why the semantic cache has answered it; null where that is forgotten. */
async function servedFrom(call) {
  try {
    return await ask(`cache/served/${encodeURIComponent(call.request_id)}`);
  } catch (error) {
    if (error instanceof Failure && error.status === 404) return null;
    throw error;
  }
}

function list(page, { query, go, address }) {
  const field = h("input", { type: "search", name: "filter", value: query.filter ?? "", placeholder: "model:gpt-5-mini status:5xx cost:>0.01 -tenant:research", "aria-label": "Filter" });
  const search = (event) => {
    event.preventDefault();
    field.blur();
    go(address("requests", { filter: field.value.trim() || null }));
  };
  const columns = [
    { title: "At", of: (row) => format.moment(row.at_us / 1e6), csv: (row) => new Date(row.at_us / 1000).toISOString() },
    { title: "Status", of: (row) => `${row.status}${row.error ? ` ${row.error}` : ""}`, cell: (row) => h("span", { class: row.fault ? "bad" : "" }, `${row.fault ? "■ " : ""}${row.status}${row.error ? ` ${row.error}` : ""}`) },
    { title: "Model", of: (row) => row.model },
    { title: "Backend", of: (row) => row.backend || "–" },
    { title: "Route", of: (row) => row.route },
    { title: "Tenant", of: (row) => row.tenant },
    { title: "Key", of: (row) => row.key || "–" },
    { title: "Cache", of: (row) => row.cache || "–" },
    { title: "Tokens", number: true, of: (row) => `${format.count(row.input_tokens)} + ${format.count(row.output_tokens)}`, csv: (row) => row.input_tokens + row.output_tokens },
    { title: "Cost", number: true, of: (row) => format.usd(row.cost), csv: (row) => row.cost },
    { title: "First token", number: true, of: (row) => (row.ttft_us === null ? "–" : format.ms(row.ttft_us / 1000)) },
    { title: "In all", number: true, of: (row) => format.ms(row.total_us / 1000), csv: (row) => row.total_us / 1000 },
  ];
  const older = () => go(address("requests", { filter: query.filter, before: String(page.next) }));
  return [
    h("h1", null, "Requests"),
    h("form", { class: "tools", onsubmit: search, role: "search" }, field, h("button", { class: "action" }, "Find")),
    page.problem && h("p", { class: "bad", role: "alert" }, `■ ${page.problem}`),
    page.rows.length
      ? table("requests", columns, page.rows, { onpick: (row) => go(address(`requests/${row.seq}`, { filter: query.filter })) })
      : !page.problem && h("p", { class: "fine" }, query.filter ? "None found so far." : "No call has come by yet."),
    page.next !== null && h("div", { class: "tools" },
      page.searched_to !== null && h("span", { class: "fine" }, `Looked back to ${format.minute(page.searched_to)}.`),
      h("button", { class: "action", onclick: older }, "Go on")),
  ];
}

function details({ call, parts, cost, saved }, served, context) {
  const { query, link, address } = context;
  const value = (name) => (name === "at" ? format.moment(call.at_us / 1e6) : name === "stream" || name === "estimated" ? (call[name] ? "yes" : "no") : String(call[name] ?? ""));
  const columns = [
    { title: "Part", of: (part) => (part.part === 0 ? "the call" : part.kind) },
    { title: "Backend", of: (part) => part.backend || "–" },
    { title: "Served", of: (part) => part.served || "–" },
    { title: "Prompt", number: true, of: (part) => format.count(part.input_tokens), csv: (part) => part.input_tokens },
    { title: "Cached", number: true, of: (part) => format.count(part.cached_tokens), csv: (part) => part.cached_tokens },
    { title: "Answer", number: true, of: (part) => format.count(part.output_tokens), csv: (part) => part.output_tokens },
    { title: "Cost", number: true, of: (part) => format.usd(part.cost), csv: (part) => part.cost },
  ];
  const causes = Object.entries(saved).filter(([, amount]) => amount !== null && Number(amount) !== 0);
  return [
    h("p", null, link(address("requests", { filter: query.filter }), null, "All requests")),
    h("h1", null, `${call.model}, ${call.status}${call.fault ? `, ${call.fault}'s fault` : ""}, ${format.usd(cost)}`),
    waterfall(call),
    served && why(served, call, context),
    h("h2", null, "Charges"), table(`call-${call.seq}`, columns, parts),
    h("p", { class: "fine" }, cost === null ? "A price is unknown." : `$${cost} in all.`, causes.map(([cause, amount]) => ` ${cause}: ${format.usd(amount)} saved.`)),
    h("h2", null, "The call"),
    h("dl", { class: "facts" }, NAMES.filter((name) => value(name)).map((name) => [h("dt", null, name), h("dd", null, value(name))]),
      TOKENS.filter((name) => call[name]).map((name) => [h("dt", null, name), h("dd", null, call[name].toLocaleString("en-US"))])),
  ];
}

function why(served, call, context) {
  const { link, address } = context;
  return [
    h("h2", null, "Why it was answered from the semantic cache"),
    h("p", null, "The stored question: ", link(address(`caches/${served.proposal.entry}`), null, served.text), `. Their likeness is ${served.similarity}.`, reckoned(served)),
    judged({ id: call.request_id }, context),
  ];
}

/** From its arrival to its end: the gateway itself, waiting for room, the backend, the tokens after the first. */
function waterfall(call) {
  const { queue_us: waited, ttft_us: first } = call;
  const whole = Math.max(call.total_us, 1);
  const sent = call.sent_us ?? (waited === null ? null : Math.min(waited, whole));
  const own = sent === null ? whole : Math.max(sent - (waited ?? 0), 0);
  const told = first === null ? whole : Math.min(first, whole);
  const often = call.attempts > 1 ? `, ${call.attempts} attempts` : "";
  const spans = [
    ["In all", 0, whole],
    [sent === null ? "Answered by the gateway itself" : "In the gateway: read, matched, looked for in caches", 0, own],
    waited && ["Waited for room", own, sent],
    sent !== null && [`${call.backend || "Backend"}${first === null ? "" : ", until the first token"}${often}`, sent, told],
    sent !== null && first !== null && ["The other tokens", told, whole],
  ].filter(Boolean);
  return h("ul", { class: "ranked waterfall" }, spans.map(([name, from, to]) => h("li", null,
    h("div", { class: "row" }, h("span", { class: "name" }, name), h("span", null, format.ms((to - from) / 1000))), bar(from / whole, to / whole, name === "In all" ? "rest" : ""))),
    call.tpot_us !== null && h("li", { class: "fine" }, `${format.ms(call.tpot_us / 1000)} a token`));
}
