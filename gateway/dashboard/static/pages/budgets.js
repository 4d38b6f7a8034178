// Who has used how much of what and when it ends; keys: made, rotated, revoked and budgets raised by who may.

import { ask, tell } from "../api.js";
import { bar, h, table } from "../dom.js";
import * as format from "../format.js";
import { form } from "../parts.js";

export const title = "Keys and budgets";
export const every_s = 30;

export async function load({ me, query }) {
  const [budgets, keys, used] = await Promise.all([
    ask("budgets"),
    me.tenant === null ? ask("keys", { after: query.after }) : null,
    ask("overview", { range: "30d", by: "key" }),
  ]);
  return { budgets, keys, used: used.money.by };
}

export function draw({ budgets, keys, used }, context) {
  return [h("h1", null, "Keys and budgets"), budgetTable(budgets, context), keyPart(keys, context), usedPart(used)];
}

function budgetTable({ rows, total, is_whole: isWhole }, context) {
  if (!rows.length) return h("p", { class: "fine" }, "No budget has been used. Policies have them as in ", h("code", null, "budgets: [{name: month, per: key, usd: 50, every: month}]"), ".");
  const columns = [
    { title: "Whose", of: (row) => row.who || "all" },
    { title: "Budget", of: (row) => row.budget },
    { title: "Used", of: (row) => format.percent(row.share), cell: (row) => [format.percent(row.share), bar(0, row.share, row.share >= 0.8 ? "alert" : "")] },
    { title: "Spent", number: true, of: (row) => format.usd(row.spent_usd), csv: (row) => row.spent_usd },
    { title: "Of", number: true, of: (row) => format.usd(row.usd) + (Number(row.raised_usd) ? ` + ${format.usd(row.raised_usd)}` : ""), csv: (row) => row.usd },
    { title: "At this pace by its end", number: true, of: (row) => (row.by_its_end_usd === null ? "–" : `about ${format.usd(row.by_its_end_usd)}`), csv: (row) => row.by_its_end_usd },
    { title: "Every", of: (row) => row.every },
    { title: "Then", of: (row) => row.on_exceed },
    { title: "Ends at this pace", of: (row) => (row.share >= 1 ? "is used up" : row.ends_at_pace ? format.minute(row.ends_at_pace) : row.ends ? "lasts" : "–") },
  ];
  return [
    table("budgets", columns, rows),
    total > rows.length && h("p", { class: "fine" }, `${format.count(total - rows.length)} more, which are further from their ends.`),
    !isWhole && h("p", { class: "fine" }, "Only of who has called this process since its start."),
    context.me.may_manage && change("Raise a budget", [["budget", "Budget", rows[0].budget], ["who", "Whose", rows[0].who], ["usd", "By how many dollars", ""], ["until", "Until, as in 24h", "24h"], ["why", "Why", ""]], "Raise", (values) => tell("raises", values), context),
  ];
}

function keyPart(keys, context) {
  if (!keys) return null;
  const act = async (row, what) => {
    if (what === "revoke" && !confirm(`Revoke ${row.name}? Its calls are refused within 5 seconds.`)) return;
    shown(await tell(`keys/${row.name}/${what}`, {}), context);
  };
  const columns = [
    { title: "Name", of: (row) => row.name },
    { title: "Tenant", of: (row) => row.tenant },
    { title: "Team", of: (row) => row.team || "–" },
    { title: "Status", of: (row) => row.status ?? "of the policy file" },
    { title: "Ends with", of: (row) => row.secrets?.map((secret) => `…${secret.ends_with}`).join(", ") || "–" },
    { title: "Expires", of: (row) => row.expires || "never" },
    { title: "", of: () => "", cell: (row) => row.status === "active" && context.me.may_manage && h("span", { class: "tools" },
      h("button", { class: "quiet", onclick: () => act(row, "rotate") }, "Rotate"), h("button", { class: "quiet", onclick: () => act(row, "revoke") }, "Revoke")) },
  ];
  const rows = [...keys.of_file, ...(keys.stored?.data ?? [])];
  return [
    h("h2", null, "Keys"),
    rows.length ? table("keys", columns, rows) : h("p", { class: "fine" }, "There are no keys: anybody on this machine may call."),
    keys.stored?.has_more && h("p", null, context.link(context.address("budgets", { after: keys.stored.last_name }), null, "More keys")),
    keys.stored && context.me.may_manage && change("Make a key", [["name", "Name", ""], ["tenant", "Tenant", "default"], ["team", "Team", ""], ["expires", "Expires, as in 90d", ""]], "Make", (values) => tell("keys", values), context),
  ];
}

function withoutEmpty(values) {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));
}

function shown(made, { again }) {
  if (!made.key) return again();
  const box = h("dialog", { class: "narrow" },
    h("h1", null, `The new secret of ${made.name}`), h("p", null, "It is shown now and never again."), h("pre", null, made.key),
    h("button", { class: "action first", onclick: () => { box.close(); box.remove(); again(); } }, "I have it"));
  document.body.append(box);
  return box.showModal();
}

function change(name, fields, button, send, context) {
  return form(name, fields, button, async (values) => {
    const made = await send(withoutEmpty(values));
    document.activeElement?.blur();
    shown(made, context);
  });
}

function usedPart(used) {
  if (!used.length) return null;
  const columns = [
    { title: "Key", of: (row) => row.name || (row.others ? `${row.others} others` : "none") },
    { title: "Spent in 30 days", number: true, of: (row) => format.usd(row.cost), csv: (row) => row.cost },
    { title: "The 30 days before", number: true, of: (row) => (row.before === null ? "–" : format.usd(row.before)), csv: (row) => row.before },
    { title: "Saved", number: true, of: (row) => format.usd(row.saved), csv: (row) => row.saved },
    { title: "Calls", number: true, of: (row) => format.count(row.calls), csv: (row) => row.calls },
  ];
  return [h("h2", null, "What keys have spent"), table("spent-by-key", columns, used)];
}
