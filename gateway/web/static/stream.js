// Server-sent events by fetch: an EventSource cannot send a key, and a key does not belong into a URL.

const SILENCE_MS = 5000; // something comes every second
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10000;

export class Refused extends Error {}

/** What follows `start` in the line that begins so. No regular expression: for these U+2028, in a name, ends a line. */
const field = (lines, start) => lines.find((line) => line.startsWith(start))?.slice(start.length);

/** Events of a body as `[name, data]`. Each ends with an empty line; ours have one line of data. */
async function* events(body, alive) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    alive();
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const [name, data] = [field(lines, "event: "), field(lines, "data: ")];
      if (name && data) yield [name, JSON.parse(data)];
    }
  }
}

export class Stream {
  /** `told` gets every event, `state` what is to be said of the connection, `refused` a status that a key may change. */
  constructor({ url, headers, told, state, refused }) {
    Object.assign(this, { url, headers, told, state, refused });
    this.running = null;
  }

  start() {
    this.stop();
    const running = new AbortController();
    this.running = running;
    this.#follow(running.signal);
  }

  stop() {
    this.running?.abort();
    this.running = null;
  }

  async #follow(stopped) {
    let pause = FIRST_PAUSE_MS;
    while (!stopped.aborted) {
      try {
        await this.#once(stopped, () => (pause = FIRST_PAUSE_MS));
      } catch (error) {
        if (stopped.aborted) return;
        if (error instanceof Refused) {
          this.refused(error.message);
          return;
        }
        this.state("lost", error.userMessage ?? "no connection, trying again");
      }
      await new Promise((resolve) => setTimeout(resolve, pause * (0.75 + Math.random() / 2)));
      pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
    }
  }

  async #once(stopped, began) {
    const silent = new AbortController();
    let timer = setTimeout(() => silent.abort(), SILENCE_MS);
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE_MS);
    };
    try {
      const signal = AbortSignal.any([stopped, silent.signal]);
      const answer = await fetch(this.url, { headers: this.headers(), cache: "no-store", signal });
      if (answer.status === 401 || answer.status === 403) throw new Refused(String(answer.status));
      if (!answer.ok) {
        const error = new Error(String(answer.status));
        error.userMessage = answer.status === 503 ? "too many look already, trying again" : `error ${answer.status}`;
        throw error;
      }
      for await (const [name, data] of events(answer.body, alive)) {
        if (name === "welcome") began();
        this.told(name, data);
      }
      this.state("lost", "the gateway closed the connection, trying again");
    } finally {
      clearTimeout(timer);
    }
  }
}
