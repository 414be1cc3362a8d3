// Reads what kvd says once a second: server-sent events through fetch, as an EventSource cannot
// send the token. Where no further stream may be opened, or nobody looks at the page, it asks for
// the same document again and again instead: a browser keeps six connections to a server, and every
// page wants one.

const PERIOD_MS = 1000;
const SILENCE_MS = 5000; // a kvd that says nothing for so long does not answer
const KEPT = 300; // samples of the counters: five minutes

export class Refused extends Error {
  constructor(status, document) {
    super(document.message || `status ${status}`);
    this.status = status;
    this.path = document.path || "";
  }
}

export const token = { text: "" };

/** A document and its ETag. Throws Refused for what kvd refuses. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (options.token || token.text) headers.Authorization = `Bearer ${options.token || token.text}`;
  const answer = await fetch(path, { signal: AbortSignal.timeout(SILENCE_MS), ...options, headers, cache: "no-store" });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, body);
  return { body, etag: answer.headers.get("ETag") };
}

/** Calls `seen(name, data)` for each event until the stream ends. */
async function readStream(stream, seen) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const field = (name) =>
        event.split("\n").filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2)).join("\n");
      seen(field("event"), JSON.parse(field("data")));
    }
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Reads until the stream ends or nobody looks at the page any more. */
async function stream(on) {
  const headers = { Accept: "text/event-stream" };
  if (token.text) headers.Authorization = `Bearer ${token.text}`;
  const leaves = new AbortController(), leave = () => document.hidden && leaves.abort();
  let silence;
  const hear = () => {
    clearTimeout(silence);
    silence = setTimeout(() => leaves.abort(), SILENCE_MS);
  };
  document.addEventListener("visibilitychange", leave);
  hear();
  try {
    const answer = await fetch("/v1/overview", { headers, cache: "no-store", signal: leaves.signal });
    if (answer.status === 401) throw new Refused(401, {});
    if (!answer.ok) return false;
    await readStream(answer.body, (name, data) => {
      hear();
      if (name !== "overview") return;
      on.state("live");
      on.overview(data);
    });
  } catch (error) {
    if (!document.hidden) throw error;
  } finally {
    clearTimeout(silence);
    document.removeEventListener("visibilitychange", leave);
  }
  return true;
}

/** Never ends. `on.overview(document)`, `on.state("live" | "polling" | "lost" | "token")`. */
export async function follow(on, wake) {
  for (;;) {
    try {
      if (document.hidden || !(await stream(on))) {
        const { body } = await ask("/v1/overview");
        on.state("polling");
        on.overview(body);
      }
      await pause(PERIOD_MS);
    } catch (error) {
      const wanted = error instanceof Refused && error.status === 401;
      on.state(wanted ? "token" : "lost");
      await (wanted ? wake() : pause(PERIOD_MS));
    }
  }
}

/** Counters over time, and their rates. */
export class History {
  samples = [];
  boot = "";

  add(overview) {
    if (overview.status.boot_id !== this.boot) this.samples = []; // another daemon: counters begin anew
    this.boot = overview.status.boot_id;
    this.samples.push({ t: overview.now_s, ...flat(overview) });
    if (this.samples.length > KEPT) this.samples.shift();
  }

  get last() { return this.samples[this.samples.length - 1]; }

  /** The growth of `key` over the last `seconds`. */
  growth(key, seconds, at = this.samples.length - 1) {
    const end = this.samples[at];
    if (!end) return 0;
    let first = at;
    while (first > 0 && end.t - this.samples[first].t < seconds) --first;
    return end[key] - this.samples[first][key];
  }

  /** The rate between each sample and the one before. */
  rate(key) {
    return this.samples.slice(1).map((s, i) => {
      const before = this.samples[i];
      return { t: s.t, y: s.t > before.t ? (s[key] - before[key]) / (s.t - before.t) : 0 };
    });
  }

  /** The share of `part` in part and rest, over the last minute, by sample; null: there was none. */
  share(part, rest, seconds = 60) {
    return this.samples.map((s, i) => {
      const met = this.growth(part, seconds, i), all = met + this.growth(rest, seconds, i);
      return { t: s.t, y: all > 0 ? met / all : null };
    });
  }
}

function flat({ status, cache }) {
  const c = status.counters;
  return {
    tokens: c.tokens, steps: c.steps, rotations_out: c.rotations_out, rotations_in: c.rotations_in,
    h2d: c.copy_bytes.h2d, d2h: c.copy_bytes.d2h, finished: c.requests_finished,
    ttft_met: c.ttft.met, ttft_missed: c.ttft.missed, tbt_met: c.tbt.met, tbt_missed: c.tbt.missed,
    asked: cache.prompt_tokens, found_hbm: cache.found_tokens.hbm, found_dram: cache.found_tokens.dram,
    computed: cache.prompt_tokens - cache.found_tokens.hbm - cache.found_tokens.dram,
  };
}
