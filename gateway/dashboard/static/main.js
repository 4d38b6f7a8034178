// The frame around the pages: who is looking, at which page and span, and when figures are asked for anew.

import { Failure, ask, forget, takeSpent, tell } from "./api.js";
import { clear } from "./charts.js";
import { fill, h } from "./dom.js";
import { clock, monthOfNow, useZone } from "./format.js";
import { refill } from "./held.js";
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

const FAULT = "This page has a fault; reload it.";
const MOST_MS_A_MINUTE = 30;
const MOST_PAUSE_MS = 600_000;

const head = document.getElementById("head");
const main = document.getElementById("main");
const strip = document.getElementById("strip");
const foot = document.getElementById("foot");
let me = null;
let shownPage = null;
let shown = null;
let touched = null;
let timer = null;
let turn = 0;

/** Where the URL leads. */
function place() {
  const parts = location.pathname.replace(/^\/dashboard\/?/, "").split("/");
  return { page: Object.hasOwn(PAGES, parts[0]) ? parts[0] : "", rest: parts.slice(1).join("/"), query: Object.fromEntries(new URLSearchParams(location.search)) };
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
  const was = nameOf(place());
  history.pushState(null, "", url);
  if (nameOf(place()) !== was) scrollTo(0, 0);
  show();
}

/** Which page it is, whatever is chosen on it. */
function nameOf({ page, rest }) {
  return `${page}/${rest}`;
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
  refill(head,
    link(address("", { only: null }), { class: "brand" }, "Slipstream"),
    h("nav", { "aria-label": "Pages" }, Object.entries(PAGES).filter(([, module]) => (!module.isForAdmins || me.is_admin) && (!module.isForAll || me.tenant === null)).map(([name, module]) =>
      link(address(name, name === "" ? {} : { only: null }), { "aria-current": name === page ? "page" : null }, module.title))),
    PAGES[page].hasRange && h("nav", { class: "ranges", "aria-label": "Span of time" }, Object.entries(RANGES).map(([name, title]) =>
      link(address(page, { range: name }), { "aria-current": name === range ? "true" : null }, title ?? monthOfNow()))));
  document.title = `${PAGES[page].title} · Slipstream`;
}

function drawFoot(asOf) {
  refill(foot,
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

/** Whether somebody fills in a form, reads what has come of one, or marks a text: it must not go away under their hands. */
function isInUse() {
  const marked = getSelection();
  const focused = document.activeElement;
  return (!marked.isCollapsed && main.contains(marked.anchorNode)) || main.querySelector("details[open] form, form.wide") !== null || (main.contains(focused) && (focused.matches("input, textarea") || (focused.matches("select") && focused === touched)));
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
    if (!isAgain) {
      drawFrame();
      main.setAttribute("aria-busy", "true");
    }
    const context = { me, query: at.query, rest: at.rest, address, go, link, again: show };
    const found = await page.load(context);
    if (mine !== turn) return;
    if (!(isAgain && isInUse())) {
      const said = JSON.stringify([at, { ...found, as_of: null }]);
      if (!isAgain || said !== shown) {
        clear();
        drawMain(at, page.draw(found, context));
      }
      shown = said;
      drawFoot(found.as_of ?? Date.now() / 1000);
    }
    fill(strip);
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

/** The focus stays in it: else the next Tab would begin at the top of the window again. */
function drawMain(at, drawn) {
  const parts = [me.is_made_up && h("p", { class: "made-up" }, "Made-up data, from ", h("code", null, "slipstream demo"), "."), drawn];
  let isFocusLost = main.contains(document.activeElement);
  if (nameOf(at) === shownPage) isFocusLost = refill(main, parts);
  else fill(main, parts);
  if (isFocusLost) main.focus({ preventScroll: true });
  shownPage = nameOf(at);
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
for (const kind of ["pointerdown", "keydown"]) main.addEventListener(kind, ({ target }) => (touched = target));
addEventListener("error", () => fill(strip, FAULT));
addEventListener("unhandledrejection", (event) => {
  // What a button has asked for in vain is no fault of the page.
  const isFailure = event.reason instanceof Failure;
  if (isFailure) event.preventDefault();
  fill(strip, isFailure ? event.reason.message : FAULT);
});
show();
