// Reads what kvd says once a second: server-sent events through fetch, as an EventSource cannot
// send the token. Where no further stream may be opened, or nobody looks at the page, it asks for
// the same document again and again instead: a browser keeps six connections to a server, and every
// page wants one.

const PERIOD_MS = 1000;
const SILENCE_MS = 5000; // a kvd that has been silent for this long does not answer
export const KEPT_S = 900; // samples of the counters, as kvd-admin keeps them

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

/**
 * Never ends. `on.history(document)` comes first, and again after each silence; `on.overview(document)`,
 * `on.state("live" | "polling" | "lost" | "token")`.
 */
export async function follow(on, wake) {
  for (let known = false; ;) {
    try {
      if (!known) on.history((await ask("/v1/history")).body);
      known = true;
      if (document.hidden || !(await stream(on))) {
        const { body } = await ask("/v1/overview");
        on.state("polling");
        on.overview(body);
      }
      await pause(PERIOD_MS);
    } catch (error) {
      known = false;
      const wanted = error instanceof Refused && error.status === 401;
      on.state(wanted ? "token" : "lost");
      await (wanted ? wake() : pause(PERIOD_MS));
    }
  }
}

/** Counters over time, and their rates. They begin anew at each boot of kvd. */
export class History {
  samples = [];
  boots = new Map(); // id: when it began

  /** What kvd-admin kept: of the time before this page, or while it heard nothing. */
  fill({ boot_id: boot, samples }) {
    const from = this.last?.t ?? -Infinity;
    for (const { now_s: t, counters } of samples) if (t > from) this.samples.push({ t, boot, ...flat(counters) });
  }

  add({ now_s: t, status: { boot_id: boot, uptime_s: up, counters } }) {
    while (this.last?.t >= t) this.samples.pop(); // the same moment again, or the machine's clock was set back
    if (!this.boots.has(boot)) this.boots.set(boot, t - up);
    this.samples.push({ t, boot, ...flat(counters) });
    this.samples = this.samples.filter((one) => one.t > t - KEPT_S);
  }

  /** When kvd began, as far as this page knows. */
  get starts() { return [...this.boots.values()]; }

  get last() { return this.samples[this.samples.length - 1]; }

  /** The growth of `key` over the last `seconds`. */
  growth(key, seconds, at = this.samples.length - 1) {
    const end = this.samples[at];
    if (!end) return 0;
    let first = at;
    while (first > 0 && end.t - this.samples[first].t < seconds && this.samples[first - 1].boot === end.boot) --first;
    return end[key] - this.samples[first][key];
  }

  /** The rate between each sample and the one before; null: kvd began between them. */
  rate(key) {
    return this.samples.slice(1).map((s, i) => {
      const before = this.samples[i];
      return { t: s.t, y: s.boot === before.boot && s.t > before.t ? (s[key] - before[key]) / (s.t - before.t) : null };
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

function flat(c) {
  return {
    tokens: c.tokens, rotations_out: c.rotations_out, rotations_in: c.rotations_in, h2d: c.copy_bytes.h2d, d2h: c.copy_bytes.d2h,
    ttft_met: c.ttft.met, ttft_missed: c.ttft.missed, tbt_met: c.tbt.met, tbt_missed: c.tbt.missed,
    asked: c.prefixes.tokens, found_hbm: c.prefixes.tokens_in_hbm, found_dram: c.prefixes.tokens_in_dram,
  };
}
