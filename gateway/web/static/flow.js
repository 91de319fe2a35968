// Pulls between pods: a ring of pods, and arrows as wide as what they carry.

import { h, svg, text, attribute } from "./dom.js";
import { short, count } from "./format.js";

const WIDTH = 620;
const HEIGHT = 430;
const MOST_ARROWS = 60; // the largest; all are in the table
const MOST_AMOUNTS = 12; // beside arrows; with more they would cover each other
const FRESH_MS = 3000;

/** Of the last `span` seconds, `[source, consumer, pulls, tokens, when last]` by tokens. */
export function flows(history, span) {
  const now = history.at(-1)?.t ?? 0;
  const found = new Map();
  for (const second of history) {
    if (now - second.t > span * 1000) continue;
    for (const [source, consumer, pulls, tokens] of second.pulls) {
      const key = `${source}>${consumer}`;
      const flow = found.get(key) ?? { source, consumer, pulls: 0, tokens: 0, last: 0 };
      flow.pulls += pulls;
      flow.tokens += tokens;
      flow.last = second.t;
      found.set(key, flow);
    }
  }
  return [...found.values()].sort((one, other) => other.tokens - one.tokens);
}

function places(pods) {
  const radius = pods.length > 24 ? 7 : pods.length > 10 ? 15 : 30;
  const beside = pods.length > 24 ? 20 : pods.length > 4 ? 116 : 70; // where names go
  const room = { x: WIDTH / 2 - radius - beside, y: HEIGHT / 2 - radius - 46 };
  const at = new Map();
  pods.forEach((pod, index) => {
    const turn = (index / pods.length) * 2 * Math.PI - Math.PI / 2 + (pods.length === 2 ? -Math.PI / 2 : 0);
    const only = pods.length === 1 ? 0 : 1;
    const [x, y] = [WIDTH / 2 + only * room.x * Math.cos(turn), HEIGHT / 2 + only * room.y * Math.sin(turn)];
    at.set(pod.name, { x, y, radius, name: named(x, y, radius, Math.cos(turn), Math.sin(turn), pods.length) });
  });
  // A triangle stands higher than its circle is, so what is drawn is moved to the middle.
  const ys = [...at.values()].map((place) => place.y);
  const off = HEIGHT / 2 - (Math.min(...ys) + Math.max(...ys)) / 2;
  for (const place of at.values()) {
    place.y += off;
    place.name.y += off;
  }
  return at;
}

/** Where a pod's name goes: outwards, where no arrows are. */
function named(x, y, radius, cos, sin, howMany) {
  const lines = howMany <= 10 ? 2 : 1;
  if (howMany > 4 && Math.abs(cos) > 0.3) {
    const right = cos > 0;
    return { x: x + (right ? 1 : -1) * (radius + 9), y: y + (lines === 2 ? -3 : 5), anchor: right ? "start" : "end" };
  }
  const above = sin < 0 && howMany > 2;
  return { x, y: above ? y - radius - (lines === 2 ? 27 : 11) : y + radius + 19, anchor: "middle" };
}

/** From rim to rim, bent to its right, so that the way back has a way of its own; with its head. */
function arrow(from, to, width) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const distance = Math.hypot(dx, dy) || 1;
  const [nx, ny] = [-dy / distance, dx / distance];
  const bend = Math.min(70, distance * 0.18);
  const middle = { x: (from.x + to.x) / 2 + nx * bend, y: (from.y + to.y) / 2 + ny * bend };
  const towards = (point, room) => {
    const length = Math.hypot(middle.x - point.x, middle.y - point.y) || 1;
    return { x: point.x + ((middle.x - point.x) / length) * room, y: point.y + ((middle.y - point.y) / length) * room };
  };
  const head = 7 + width * 0.9;
  const start = towards(from, from.radius + 4);
  const end = towards(to, to.radius + 4 + head);
  const tip = towards(to, to.radius + 4);
  const side = { x: -(tip.y - end.y) / head, y: (tip.x - end.x) / head };
  const half = head * 0.62;
  const label = { x: (start.x + 2 * middle.x + end.x) / 4 + nx * 12, y: (start.y + 2 * middle.y + end.y) / 4 + ny * 12 };
  return {
    line: `M${start.x} ${start.y}Q${middle.x} ${middle.y} ${end.x} ${end.y}`,
    head: `M${tip.x} ${tip.y}L${end.x + side.x * half} ${end.y + side.y * half}L${end.x - side.x * half} ${end.y - side.y * half}Z`,
    label,
  };
}

/** The part of a ring that `share` of it is. */
function arc({ x, y }, radius, share) {
  const part = Math.max(0, Math.min(0.9999, share));
  const end = { x: x + radius * Math.sin(part * 2 * Math.PI), y: y - radius * Math.cos(part * 2 * Math.PI) };
  return `M${x} ${y - radius}A${radius} ${radius} 0 ${part > 0.5 ? 1 : 0} 1 ${end.x} ${end.y}`;
}

export class Flow {
  constructor(place, table) {
    this.rows = table.tBodies[0];
    this.title = svg("title", { id: "flow-title" });
    this.arrows = svg("g", {});
    this.nodes = svg("g", {});
    this.empty = svg("text", { x: WIDTH / 2, y: HEIGHT / 2, class: "flow-empty" });
    this.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "flow", "aria-labelledby": "flow-title" },
      this.title, this.arrows, this.nodes, this.empty);
    place.append(this.picture);
  }

  show(pods, history, span, shorten) {
    const found = flows(history, span);
    const at = places(pods);
    const now = history.at(-1)?.t ?? 0;
    const drawn = found.filter((flow) => at.has(flow.source) && at.has(flow.consumer)).slice(0, MOST_ARROWS);
    const most = drawn[0]?.tokens || 1;
    const scale = { most, widest: drawn.length > 20 ? 8 : 15, amounts: drawn.length <= MOST_AMOUNTS, now };
    this.arrows.replaceChildren(...drawn.map((flow) => this.drawn(flow, at, scale, shorten)));
    this.nodes.replaceChildren(...pods.map((pod) => this.node(pod, at.get(pod.name), pods.length, shorten)));
    text(this.empty, found.length || pods.length < 2 ? "" : "no pulls in this time");
    this.say(found, shorten);
  }

  drawn(flow, at, { most, widest, amounts, now }, shorten) {
    const width = 1.5 + (widest - 1.5) * Math.sqrt(flow.tokens / most);
    const way = arrow(at.get(flow.source), at.get(flow.consumer), width);
    const said = `${shorten(flow.source)} → ${shorten(flow.consumer)}: ${count(flow.tokens)} tokens in ${count(flow.pulls)} pulls`;
    return svg("g", { class: now - flow.last < FRESH_MS ? "arrow fresh" : "arrow" },
      svg("title", {}, said),
      svg("path", { class: "line", d: way.line, "stroke-width": width.toFixed(1) }),
      svg("path", { class: "spark", d: way.line, "stroke-width": Math.max(1.5, width / 3.5).toFixed(1) }),
      svg("path", { class: "head", d: way.head }),
      amounts && svg("text", { class: "amount", x: way.label.x, y: way.label.y }, short(flow.tokens)));
  }

  node(pod, place, howMany, shorten) {
    const { x, y, radius, name } = place;
    const state = stateOf(pod);
    const busy = `${count(pod.running)} running, ${count(pod.waiting)} waiting`;
    return svg("g", { class: `node ${state.kind}` },
      svg("title", {}, `${pod.name}: ${state.words}; ${busy}`),
      svg("circle", { class: "body", cx: x, cy: y, r: radius }),
      pod.kv_usage != null && svg("path", { class: "usage", d: arc(place, radius, pod.kv_usage) }),
      howMany <= 10 && svg("text", { class: "inside", x, y: y + 6 }, pod.running == null ? "?" : String(pod.running)),
      howMany <= 24 && svg("text", { class: "name", x: name.x, y: name.y, "text-anchor": name.anchor }, shorten(pod.name)),
      howMany <= 10 && svg("text", { class: "under", x: name.x, y: name.y + 16, "text-anchor": name.anchor }, state.kind === "good" ? `${count(pod.waiting)} waiting` : state.words));
  }

  /** In words and as a table, for who does not see the picture. */
  say(found, shorten) {
    const tokens = found.reduce((total, flow) => total + flow.tokens, 0);
    const most = found[0];
    const told = most
      ? `${count(tokens)} tokens pulled between ${found.length} pairs of pods; most from ${shorten(most.source)} to ${shorten(most.consumer)}`
      : "No pulls between pods";
    text(this.title, told);
    attribute(this.picture, "data-pairs", String(found.length));
    const cells = found.map((flow) => h("tr", {},
      h("th", { scope: "row" }, flow.source), h("td", {}, flow.consumer),
      h("td", { class: "num" }, count(flow.pulls)), h("td", { class: "num" }, count(flow.tokens))));
    this.rows.replaceChildren(...(cells.length ? cells : [h("tr", {}, h("td", { colspan: "4" }, "none"))]));
  }
}

/** What a pod's state comes to: `good`, `warn` or `bad`, and in words. */
export function stateOf(pod) {
  if (pod.state === "down") return { kind: "bad", words: pod.reason ? `down: ${pod.reason}` : "down" };
  if (pod.state !== "ready") return { kind: "warn", words: pod.reason ? `${pod.state}: ${pod.reason}` : pod.state };
  if (pod.stalled) return { kind: "bad", words: "stalled" };
  if (pod.breaker !== "closed") return { kind: "bad", words: "left out" };
  if (pod.suspect) return { kind: "warn", words: "suspect" };
  return { kind: "good", words: "ready" };
}
