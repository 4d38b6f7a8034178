// Figures as people read them. Amounts come as exact decimal text and stay text until they are drawn.

let zone = "UTC";

/** Times are those of this zone from now on. */
export function useZone(name) {
  zone = name;
}

/** Dollars; small ones with as many digits as tell something. "unknown" is not 0. */
export function usd(text) {
  if (text === null || text === undefined) return "unknown";
  const amount = Number(text);
  const size = Math.abs(amount);
  const digits = size === 0 || size >= 0.995 ? 2 : Math.min(12, 1 - Math.floor(Math.log10(size)));
  const shown = size.toLocaleString("en-US", { minimumFractionDigits: Math.max(2, size >= 0.1 ? 2 : 0), maximumFractionDigits: Math.max(2, digits) });
  return `${amount < 0 ? "−" : ""}$${shown}`;
}

/** A count, short where it is long. */
export function count(number) {
  if (number === null || number === undefined) return "–";
  for (const [size, unit] of [[1e9, " bn"], [1e6, " m"], [1e4, " k"]]) {
    if (Math.abs(number) >= size) {
      const value = unit === " k" ? number / 1e3 : number / size;
      return value.toLocaleString("en-US", { maximumFractionDigits: value >= 100 ? 0 : 1 }) + unit;
    }
  }
  return number.toLocaleString("en-US", { maximumFractionDigits: 1 });
}

/** How many a second; few with as many digits as tell something. */
export function rate(number) {
  return number >= 10 ? count(number) : number.toLocaleString("en-US", { maximumSignificantDigits: 2 });
}

/** A share; null where there is nothing that it could be of. */
export function share(part, whole) {
  return whole > 0 ? part / whole : null;
}

/** A share as per cent. */
export function percent(value) {
  if (value === null || value === undefined) return "–";
  const hundred = value * 100;
  if (hundred !== 0 && Math.abs(hundred) < 0.01) return "< 0.01 %";
  return `${hundred.toLocaleString("en-US", { maximumFractionDigits: Math.abs(hundred) >= 10 ? 1 : 2 })} %`;
}

/** Milliseconds, or seconds where these are many. */
export function ms(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1000) return `${(value / 1000).toLocaleString("en-US", { maximumFractionDigits: value >= 10_000 ? 1 : 2 })} s`;
  return `${value.toLocaleString("en-US", { maximumFractionDigits: value >= 100 ? 0 : 1 })} ms`;
}

/** How much more or less, in words. */
export function change(now, before) {
  if (!(before > 0)) return "";
  const by = (now - before) / before;
  if (Math.abs(by) < 0.005) return "no change";
  const shown = Math.abs(by) >= 9.995 ? `${(by + 1).toFixed(0)} times as much` : `${Math.round(Math.abs(by) * 100)} %`;
  return by > 9.995 ? shown : `${by > 0 ? "+" : "−"}${shown}`;
}

/** The same at the end of a sentence; `what` is that before. */
export function compared(now, before, what) {
  const by = change(now, before);
  if (by === "no change") return `, as much as ${what}`;
  if (by.endsWith("as much")) return `, ${by} as ${what}`;
  return by && `, ${by.slice(1)} ${by[0] === "+" ? "more" : "less"} than ${what}`;
}

function formatted(seconds, options) {
  return new Intl.DateTimeFormat("en-GB", { timeZone: zone, ...options }).format(new Date(seconds * 1000));
}

/** The label of a step. */
export function step(seconds, kind, isLong) {
  if (kind !== "day") return formatted(seconds, { hour: "2-digit", minute: "2-digit" });
  return formatted(seconds, isLong ? { day: "numeric", month: "short" } : { weekday: "short" });
}

/** A moment to the second. */
export function moment(seconds) {
  return formatted(seconds, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** A moment to the minute. */
export function minute(seconds) {
  return formatted(seconds, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
}

/** The time of day. */
export function clock(seconds) {
  return formatted(seconds, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** The short name of the month that it is, where the ledger's days are counted and not where the browser is. */
export function monthOfNow() {
  return formatted(Date.now() / 1000, { month: "short" });
}

/** The name of a month that is written 2026-11. */
export function month(text) {
  return new Intl.DateTimeFormat("en-GB", { month: "long", timeZone: "UTC" }).format(new Date(`${text}-01T00:00:00Z`));
}
