// The table of pods. Rows stay where they are; only what differs is written.

import { h, bar, text, attribute } from "./dom.js";
import { age, count, percent, short } from "./format.js";
import { stateOf } from "./flow.js";

class Row {
  constructor(pod) {
    this.dot = h("span", { class: "dot", "aria-hidden": "true" });
    this.state = h("span", {});
    this.usage = bar(0, "");
    this.model = h("span", { class: "under" });
    this.name = h("span", { class: "mono" });
    this.number = Object.fromEntries(
      ["running", "waiting", "here", "gpu", "cpu", "pulls", "event", "credit"].map((name) => [name, h("span", {})]),
    );
    this.breaker = h("span", { class: "chip" });
    const cell = (label, content, kind = "num") => h("td", { class: kind, "data-label": label }, content);
    this.element = h("tr", { "data-pod": pod.name },
      h("th", { scope: "row" }, this.name, this.model),
      cell("State", h("span", { class: "state" }, this.dot, this.state), ""),
      cell("Running", this.number.running),
      cell("Waiting", this.number.waiting),
      cell("KV cache in use", this.usage, ""),
      cell("From here", this.number.here),
      cell("Blocks GPU", this.number.gpu),
      cell("Blocks CPU", this.number.cpu),
      cell("Pulls in / out", this.number.pulls),
      cell("Last event", this.number.event),
      cell("Credit", this.number.credit),
      cell("Breaker", this.breaker, ""));
  }

  show(pod) {
    const state = stateOf(pod);
    text(this.name, pod.name);
    text(this.model, pod.models.join(", "));
    attribute(this.dot, "data-kind", state.kind);
    text(this.state, state.words);
    this.usage.set(pod.kv_usage, percent(pod.kv_usage));
    const said = {
      running: count(pod.running),
      waiting: count(pod.waiting),
      here: count(pod.in_flight_requests),
      gpu: short(pod.cached_blocks.gpu),
      cpu: short(pod.cached_blocks.cpu),
      pulls: `${count(pod.pulls)} / ${count(pod.serving)}`,
      event: `${age(pod.last_event_age)}${pod.certain || pod.last_event_age == null ? "" : " ?"}`,
      credit: percent(pod.credit),
    };
    for (const [name, words] of Object.entries(said)) text(this.number[name], words);
    attribute(this.number.event, "title", pod.certain ? "" : "Events are missing, or may be");
    text(this.breaker, pod.breaker);
    attribute(this.breaker, "data-kind", pod.breaker === "closed" ? "quiet" : "bad");
  }
}

export class Pods {
  constructor(table) {
    this.body = table.tBodies[0];
    this.rows = new Map();
  }

  show(pods) {
    const names = new Set(pods.map((pod) => pod.name));
    for (const [name, row] of this.rows) {
      if (!names.has(name)) {
        row.element.remove();
        this.rows.delete(name);
      }
    }
    for (const pod of pods) {
      let row = this.rows.get(pod.name);
      if (!row) {
        row = new Row(pod);
        this.rows.set(pod.name, row);
        this.body.append(row.element);
      }
      row.show(pod);
    }
  }
}
