// The page's parts, and what reaches them.

import { Charts } from "./charts.js";
import { Decisions } from "./decisions.js";
import { by, h, attribute, text } from "./dom.js";
import { explained } from "./explain.js";
import { Flow, flows } from "./flow.js";
import { count, ms, percent, rate, short, shortener } from "./format.js";
import { Pods } from "./pods.js";
import { Stream } from "./stream.js";

const HISTORY_S = 300;
const MOST_DECISIONS = 200;
const HIDDEN_MS = 10000; // a page that nobody sees lets go after so long; a browser has few connections to a host

const state = { pods: [], history: [], shorten: (name) => name, paused: false, late: null, opened: null };

// A key, for as long as the tab is open.

const KEY = "p2p-gateway-key";
let key = null;
try {
  key = sessionStorage.getItem(KEY);
} catch {
  // Storage is closed to this page: the key lives in this variable only.
}

const headers = (more = {}) => (key ? { ...more, authorization: `Bearer ${key}` } : more);

function keep(value) {
  key = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // As above.
  }
}

function askForKey(status) {
  say("lost", "a key is needed");
  by("key-button").hidden = false;
  text(by("key-button"), "Enter key");
  text(by("key-why"), key && status === "401"
    ? "This key is not known here."
    : status === "403" ? "This key has no “admin”." : "This gateway asks for a key with “admin”. It is kept until this tab is closed.");
  by("key").value = "";
  if (!by("key-dialog").open) by("key-dialog").showModal();
  by("key").focus();
}

by("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const entered = by("key").value.trim();
  if ([...entered].some((letter) => letter.codePointAt(0) > 0xff)) {
    text(by("key-why"), "This is no key: it has characters that no header can have.");
    return;
  }
  keep(entered);
  text(by("key-button"), "Forget key");
  by("key-dialog").close();
  stream.start();
});
by("key-button").addEventListener("click", () => {
  if (by("key-button").textContent === "Enter key") return askForKey("401");
  keep(null);
  location.reload(); // what was shown to that key is gone, too
});
by("key-button").hidden = !key;

// What is drawn.

const charts = new Charts(by("chart-ttft"), by("chart-tokens"));
const flow = new Flow(by("flow"), by("flow-table"));
const pods = new Pods(by("pods"));
const decisions = new Decisions({ table: by("decisions"), held: by("held"), which: by("which"), open });
by("flow-span").addEventListener("change", drawFlow);

const TILES = ["Requests per second", "First token, median", "Prompt tokens reused", "Pulled in a minute", "Under way"];
const tiles = TILES.map((name) => {
  const tile = { value: h("b", {}, "–"), more: h("span", { class: "quiet" }, "") };
  by("tiles").append(h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, tile.value, tile.more)));
  return tile;
});

const total = (list, of) => list.reduce((sum, each) => sum + (of(each) ?? 0), 0);

function drawTiles() {
  const last = state.history.slice(-10);
  const span = Math.max(0.1, total(last, (each) => each.span));
  const failed = total(last, (each) => each.failed);
  const prompt = total(state.history.slice(-60), (each) => each.prompt);
  const cached = total(state.history.slice(-60), (each) => each.cached);
  const latest = state.history.slice(-60).findLast((each) => each.p50_ms != null);
  const pulled = flows(state.history, 60);
  const told = [
    [rate(total(last, (each) => each.requests) / span), failed ? `${rate(failed / span)} of them failed` : "none failed"],
    [ms(latest?.p50_ms), latest ? `p95 ${ms(latest.p95_ms)}` : "no answers yet"],
    [prompt ? percent(cached / prompt) : "–", `of ${short(prompt)} in a minute`],
    [short(total(pulled, (each) => each.tokens)), `tokens in ${count(total(pulled, (each) => each.pulls))} pulls`],
    [count(total(state.pods, (pod) => pod.in_flight_requests)), `${count(total(state.pods, (pod) => pod.waiting))} wait on pods`],
  ];
  told.forEach(([value, more], at) => {
    text(tiles[at].value, value);
    text(tiles[at].more, more);
  });
}

function drawFlow() {
  flow.show(state.pods, state.history, Number(by("flow-span").value), state.shorten);
}

function draw() {
  drawTiles();
  charts.show(state.history);
  drawFlow();
  pods.show(state.pods);
  drawModels();
  const left = total(state.history.slice(-60), (each) => each.unexplained);
  by("unexplained").hidden = !left;
  text(by("unexplained"), `${count(left)} more of the last minute are not shown.`);
  const ready = state.pods.filter((pod) => pod.state === "ready").length;
  const words = `${ready} of ${state.pods.length} pods ready`;
  if (state.paused) say("waiting", "paused");
  else if (state.leaving) say("waiting", `shutting down · ${words}`);
  else say(ready ? "live" : "lost", `live · ${words}`);
}

function drawModels() {
  const names = [...new Set(state.pods.flatMap((pod) => pod.models))];
  const select = by("model");
  if (names.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
  if (names.includes(chosen)) select.value = chosen;
}

function say(kind, words) {
  attribute(by("link"), "data-state", kind);
  text(by("link"), words);
}

// What arrives.

const ARRIVALS = {
  welcome(found) {
    text(by("version"), found.version);
    state.history = found.history;
    now(found);
    decisions.replace(found.decisions, state.shorten);
    draw();
  },
  second(found) {
    state.history.push(found.second);
    const oldest = found.second.t - HISTORY_S * 1000;
    state.history = state.history.filter((each) => each.t >= oldest);
    now(found);
    decisions.add(found.decisions, MOST_DECISIONS, state.shorten);
    draw();
  },
  end() {
    say("lost", "the gateway is shutting down, trying again");
  },
};

function now(found) {
  state.pods = found.pods;
  state.leaving = found.leaving;
  state.shorten = shortener(found.pods.map((pod) => pod.name));
}

const stream = new Stream({
  url: "ui/events",
  headers,
  told: (name, data) => ARRIVALS[name]?.(data),
  state: say,
  refused: askForKey,
});

by("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  attribute(by("pause"), "aria-pressed", String(state.paused));
  text(by("pause"), state.paused ? "Go on" : "Pause");
  if (state.paused) {
    stream.stop();
    say("waiting", "paused");
  } else stream.start();
});

document.addEventListener("visibilitychange", () => {
  clearTimeout(state.late);
  if (document.hidden) state.late = setTimeout(() => stream.stop(), HIDDEN_MS);
  else if (!stream.running && !state.paused && !by("key-dialog").open) stream.start();
});

// Asked for.

async function answered(url, options) {
  const answer = await fetch(url, { cache: "no-store", ...options, headers: headers(options?.headers) });
  const body = await answer.json();
  if (answer.status === 401 || answer.status === 403) askForKey(String(answer.status));
  if (!answer.ok) throw new Error(body.error?.message ?? `error ${answer.status}`);
  return body;
}

async function open(number) {
  const dialog = by("decision");
  state.opened = number;
  const show = (...parts) => state.opened === number && by("decision-body").replaceChildren(...parts); // else too late
  text(by("decision-title"), `Decision ${number}`);
  by("decision-body").replaceChildren(h("p", { class: "quiet" }, "…"));
  if (!dialog.open) dialog.showModal();
  try {
    const { request, decision } = await answered(`ui/decisions/${number}`);
    show(...explained(decision, state.shorten, request));
  } catch (error) {
    show(h("p", { class: "problem" }, error.message));
  }
}

by("decision-close").addEventListener("click", () => by("decision").close());
by("decision").addEventListener("click", (event) => event.target === by("decision") && by("decision").close());

/** The body to ask about: JSON as it is, with a model if it names none; anything else becomes the prompt. */
function asked(prompt) {
  const model = by("model").value;
  try {
    const body = JSON.parse(prompt);
    if (body && typeof body === "object" && ("messages" in body || "prompt" in body || "input" in body)) return { model, ...body };
  } catch {
    // It is no JSON, so it is a text.
  }
  return by("kind").value === "chat" ? { model, messages: [{ role: "user", content: prompt }] } : { model, prompt };
}

by("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const problem = by("ask-problem");
  problem.hidden = true;
  try {
    const body = JSON.stringify(asked(by("prompt").value));
    const decision = await answered("explain", { method: "POST", body, headers: { "content-type": "application/json" } });
    by("ask-answer").replaceChildren(...explained(decision, state.shorten));
  } catch (error) {
    by("ask-answer").replaceChildren();
    problem.hidden = false;
    text(problem, error.message);
  }
});

// Light and dark.

const THEMES = ["auto", "light", "dark"];
const theme = () => document.documentElement.dataset.theme ?? "auto";

function showTheme() {
  text(by("theme"), `Theme: ${theme()}`);
  charts.redraw();
}

by("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("p2p-gateway-theme", next);
  } catch {
    // It lasts until the page is loaded again.
  }
  showTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);

showTheme();
stream.start();
