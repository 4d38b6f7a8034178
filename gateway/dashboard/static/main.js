// The frame around the pages: who is looking, at which page and span, and when figures are asked for anew.

import { Failure, ask, forget, takeSpent, tell } from "./api.js";
import { clear } from "./charts.js";
import { fill, h } from "./dom.js";
import { clock, monthOfNow, useZone } from "./format.js";
import * as backends from "./pages/backends.js";
import * as budgets from "./pages/budgets.js";
import * as caches from "./pages/caches.js";
import * as errors from "./pages/errors.js";
import * as overview from "./pages/overview.js";
import * as policy from "./pages/policy.js";
import * as requests from "./pages/requests.js";
import * as service from "./pages/service.js";
import * as simulate from "./pages/simulate.js";
import * as signIn from "./pages/sign_in.js";

const PAGES = { "": overview, requests, errors, service, caches, backends, budgets, policy, simulate };
const RANGES = { "1h": "1 h", "24h": "24 h", "7d": "7 d", "30d": "30 d", month: null };
const EVERY_S = { "1h": 20, "24h": 30, "7d": 60, "30d": 60, month: 60 };

const MOST_MS_A_MINUTE = 30;
const MOST_PAUSE_MS = 600_000;

const head = document.getElementById("head");
const main = document.getElementById("main");
const strip = document.getElementById("strip");
const foot = document.getElementById("foot");
let me = null;
let timer = null;
let turn = 0;

/** Where the URL leads. */
function place() {
  const parts = location.pathname.replace(/^\/dashboard\/?/, "").split("/");
  return { page: parts[0] in PAGES ? parts[0] : "", rest: parts.slice(1).join("/"), query: Object.fromEntries(new URLSearchParams(location.search)) };
}

/** The address of a page; what is not given is as it was. */
function address(page, changes = {}) {
  const { query } = place();
  const kept = { range: query.range, by: query.by, only: query.only };
  const known = Object.entries({ ...kept, ...changes }).filter(([, value]) => value);
  const search = new URLSearchParams(known).toString();
  return `/dashboard${page ? `/${page}` : ""}${search ? `?${search}` : ""}`;
}

function go(url) {
  history.pushState(null, "", url);
  show();
}

function link(url, properties, ...children) {
  const follow = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(url);
  };
  return h("a", { href: url, ...properties, onclick: follow }, ...children);
}

function drawFrame() {
  const { page, query } = place();
  const range = query.range ?? "7d";
  fill(head,
    link(address("", { only: null }), { class: "brand" }, "Slipstream"),
    h("nav", { "aria-label": "Pages" }, Object.entries(PAGES).filter(([, module]) => (!module.isForAdmins || me.is_admin) && (!module.isForAll || me.tenant === null)).map(([name, module]) =>
      link(address(name, name === "" ? {} : { only: null }), { "aria-current": name === page ? "page" : null }, module.title))),
    PAGES[page].hasRange && h("nav", { class: "ranges", "aria-label": "Span of time" }, Object.entries(RANGES).map(([name, title]) =>
      link(address(page, { range: name }), { "aria-current": name === range ? "true" : null }, title ?? monthOfNow()))));
  document.title = `${PAGES[page].title} · Slipstream`;
}

function drawFoot(asOf) {
  fill(foot,
    h("span", null, asOf ? `As of ${clock(asOf)}. ` : "", asOf && h("button", { class: "quiet", onclick: show }, "Refresh")),
    me && h("span", null, `Times in ${me.zone}. Money in US dollars. Policy ${me.revision}.`),
    me?.has_keys && h("span", null, `${me.name} `, h("button", { class: "quiet", onclick: leave }, "Sign out")));
}

async function leave() {
  await tell("sign-out", {});
  forget();
  me = null;
  show();
}

async function begin() {
  me = await ask("me");
  useZone(me.zone);
}

/** Whether somebody fills in a form, or reads what has come of one: it must not go away under their hands. */
function isInUse() {
  return main.querySelector("details[open] form, form.wide") !== null || (main.contains(document.activeElement) && document.activeElement.matches("input, textarea, select"));
}

/** Until figures are asked for anew: later where they have cost the gateway much. */
function pauseMs(page, query) {
  const every = (page.every_s ?? EVERY_S[query.range ?? "7d"] ?? 60) * 1000;
  return Math.max(every, Math.min((takeSpent() / MOST_MS_A_MINUTE) * 60_000, MOST_PAUSE_MS));
}

async function draw(isAgain) {
  const mine = ++turn;
  clearTimeout(timer);
  const at = place();
  const page = PAGES[at.page];
  try {
    if (me === null) await begin();
    drawFrame();
    if (!isAgain) main.setAttribute("aria-busy", "true");
    const context = { me, query: at.query, rest: at.rest, address, go, link, again: show };
    const found = await page.load(context);
    if (mine !== turn) return;
    if (!(isAgain && isInUse())) {
      clear();
      fill(main, me.is_made_up && h("p", { class: "made-up" }, "Made-up data, from ", h("code", null, "slipstream demo"), "."), page.draw(found, context));
    }
    fill(strip);
    drawFoot(found.as_of ?? Date.now() / 1000);
  } catch (error) {
    if (mine !== turn) return;
    if (!(error instanceof Failure)) throw error;
    failed(error);
  } finally {
    if (mine === turn) {
      main.removeAttribute("aria-busy");
      if (!document.hidden && me !== null) timer = setTimeout(() => draw(true), pauseMs(page, at.query));
    }
  }
}

function failed(error) {
  if (error.status === 401) {
    forget();
    me = null;
    clear();
    fill(head, h("span", { class: "brand" }, "Slipstream"));
    fill(strip);
    fill(main, signIn.draw(show));
    drawFoot(null);
  } else if (error.status === 404 && me === null) {
    clear();
    fill(main, signIn.noLedger());
  } else {
    const next = clock(Date.now() / 1000 + 60);
    fill(strip, error.status === 400 || error.status === 403 || error.status === 404 ? error.message : `${error.message}. The figures are old; asked again at ${next}.`);
    if (!main.hasChildNodes()) fill(main, h("h1", null, "No figures yet"));
  }
}

function show() {
  for (const module of Object.values(PAGES)) module.leave?.();
  draw(false);
}

addEventListener("popstate", show);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : draw(true)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
addEventListener("error", () => fill(strip, "This page has a fault; reload it."));
show();
