// What needs somebody, the worst first: rules over what the page shows anyway.

import * as format from "./format.js";

const NEAR = 0.8;
const FAILED = 0.01;
const FELL = 0.6;

/** Notes of {level, text, page}. */
export function notesOf({ totals, totals_before: before, counts, money, budgets, backends, wrong }) {
  const notes = [];
  const add = (level, text, page = null) => notes.push({ level, text, page });
  for (const row of backends?.rows ?? []) {
    if (row.now.breaker_open) add(0, `${row.name} is out of rotation: it has failed too often.`, "errors");
    else if (row.now.probe_up === 0) add(0, `${row.name} does not answer its probes.`, "errors");
  }
  for (const [route, figures] of Object.entries(wrong)) {
    if (figures.at_most > figures.bound) add(0, `The semantic cache of ${route} may answer wrongly more often than its bound.`);
  }
  for (const budget of budgets) {
    const name = budget.who ? `${budget.who} (${budget.budget})` : budget.budget;
    if (budget.share >= 1) add(0, `${name} has used up its budget${budget.ends ? ` until ${format.minute(Date.parse(budget.ends) / 1000)}` : ""}.`, "budgets");
    else if (budget.ends_at_pace) add(1, `${name} has used ${format.percent(budget.share)} of its ${budget.every} and ends ${format.minute(budget.ends_at_pace)} at this pace.`, "budgets");
    else if (budget.share >= NEAR) add(2, `${name} has used ${format.percent(budget.share)} of its ${budget.every}.`, "budgets");
  }
  const failed = totals.failed_gateway + totals.failed_upstream;
  if (totals.calls >= 20 && failed / totals.calls > FAILED) add(1, `${format.percent(failed / totals.calls)} of the calls have failed.`, "errors");
  const rates = counts.input_tokens.map((all, index) => (all >= 1000 ? counts.cached_tokens[index] / all : null)).filter((rate) => rate !== null).sort((one, other) => one - other);
  const usual = rates[Math.floor(rates.length / 2)] ?? 0;
  const last = counts.input_tokens.at(-1) >= 1000 ? counts.cached_tokens.at(-1) / counts.input_tokens.at(-1) : null;
  if (last !== null && usual > 0.1 && last < FELL * usual) add(2, `The providers' prompt caches fell from ${format.percent(usual)} to ${format.percent(last)}: has a prompt changed?`);
  if (before && Number(money.before) > 1 && Number(money.spent) > 1.5 * Number(money.before)) add(2, `Much more is spent than before: ${format.usd(money.spent)} and not ${format.usd(money.before)}.`);
  if (money.unknown) add(3, `The price of ${money.unknown === 1 ? "a charge" : `${format.count(money.unknown)} charges`} is unknown.`, "requests");
  return notes.sort((one, other) => one.level - other.level);
}
