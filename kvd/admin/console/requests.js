// Draws requests on a time line: what each did in the last minute, and how late or how far ahead it
// is.
import { begin, bytesText, colour, drawStart, engineColour, hideTip, secondsText, showTip } from "./draw.js";
import { fillDetails } from "./tables.js";

export const STATES = ["waiting", "prefill", "running", "swapping_out", "rotary", "swapping_in"];
export const stateText = (state) => state.replace("_", " ");
const goalText = (r) => (r.awaits ? `${r.awaits} ${secondsText(r[`${r.awaits}_goal_s`])}` : "–");
const lateText = (r) => (r.late_s > 0 ? secondsText(r.late_s) : "–");
const waitText = (r) => r.waits_for?.replace("_", " ") ?? "–";
const SPAN_S = 60, HEAD = 22, NARROW = 500, MOST_ROW = 20, LEAST_ROW = 3, LABELLED = 12;

export class TimeLine {
  constructor(place, status, details) {
    this.place = place;
    this.status = status;
    this.details = details;
    this.canvas = place.querySelector("canvas");
    this.spacer = place.querySelector(".spacer");
    this.known = new Map(); // "boot/engine/request": { request, spans: [{ state, from, to }] }
    this.rows = [];
    this.filter = { engine: "", state: "", order: "engine" };
    this.chosen = "";
    place.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => {
      const row = this.rowAt(event.offsetY);
      row ? showTip(this.tell(row), event) : hideTip();
    });
    this.canvas.addEventListener("pointerleave", hideTip);
    this.canvas.addEventListener("click", (event) => this.choose(this.rowAt(event.offsetY)));
    place.addEventListener("keydown", (event) => this.key(event));
  }

  /** `boot`: the id of kvd's; `starts`: when each boot began. */
  show(requests, engines, now, boot, starts) {
    this.now = now;
    this.starts = starts;
    this.names = new Map(engines.map((engine) => [engine.id, engine.name]));
    const alive = new Set();
    for (const request of requests) {
      const key = `${boot}/${request.engine}/${request.request}`;
      alive.add(key);
      const entry = this.known.get(key) ?? { key, spans: [], arrived: now - request.age_s };
      this.known.set(key, entry);
      entry.request = request;
      const last = entry.spans[entry.spans.length - 1];
      if (last) last.to = now;
      if (!last || last.state !== request.state) {
        entry.spans.push({ state: request.state, from: last ? now : Math.max(entry.arrived, now - 1), to: now });
      }
    }
    for (const [key, entry] of this.known) {
      entry.alive = alive.has(key);
      entry.spans = entry.spans.filter((span) => span.to > now - SPAN_S);
      if (!entry.alive && entry.spans.length === 0) this.known.delete(key);
    }
    this.arrange();
    fillDetails(this.details, ["engine", "#request", "class", "state", "#prompt", "#tokens", "#HBM", "#DRAM", "#lag", "#deposit", "#rotations", "#age", "goal", "#late", "waits for"],
      () => this.rows.filter((row) => row.alive).map(({ request: r }) => [this.engineText(r.engine), r.request, r.class ?? "own goals", stateText(r.state), r.prompt_tokens, r.tokens,
        bytesText(r.hbm_bytes), bytesText(r.dram_bytes), secondsText(r.vlt_s), r.deposit_tokens ?? "–", r.rotations, secondsText(r.age_s),
        goalText(r), lateText(r), waitText(r)]), "no requests");
  }

  engineText(id) { return `${id} ${this.names?.get(id) ?? ""}`.trim(); }

  /** The requests that pass the filter, in order; ended ones come last, while there is room for all. */
  arrange() {
    const { engine, state, order } = this.filter;
    const orders = {
      engine: (a, b) => a.request.engine - b.request.engine || a.arrived - b.arrived || a.request.request - b.request.request,
      lag: (a, b) => b.request.vlt_s - a.request.vlt_s,
      deposit: (a, b) => (a.request.deposit_tokens ?? 1e9) - (b.request.deposit_tokens ?? 1e9),
      age: (a, b) => a.arrived - b.arrived,
    };
    const wanted = [...this.known.values()].filter((entry) =>
      (engine === "" || String(entry.request.engine) === engine) && (state === "" || (entry.alive && entry.request.state === state)));
    wanted.sort((a, b) => b.alive - a.alive || (a.alive ? orders[order](a, b) : b.spans[b.spans.length - 1].to - a.spans[a.spans.length - 1].to));
    const live = wanted.findIndex((entry) => !entry.alive);
    this.rows = live < 0 ? wanted : wanted.slice(0, Math.max(live, Math.min(wanted.length, live + 40)));
    this.live = live < 0 ? wanted.length : live;
    this.draw();
  }

  draw() {
    const view = this.place.clientHeight || 416;
    this.row = Math.max(LEAST_ROW, Math.min(MOST_ROW, Math.floor((view - HEAD) / Math.max(1, this.rows.length))));
    this.spacer.style.height = `${Math.max(view, HEAD + this.row * this.rows.length)}px`;
    const { context: c, width, height } = begin(this.canvas, view);
    const narrow = width < NARROW, left = narrow ? 76 : 150, right = width - 2 * (this.side = narrow ? 60 : 92) - 28;
    const x = (t) => left + (right - left) * (1 - (this.now - t) / SPAN_S);
    const first = Math.floor(this.place.scrollTop / this.row), offset = HEAD - (this.place.scrollTop - first * this.row);
    const most = this.bounds();
    this.drawGrid(c, x, left, right, height);
    this.labelled = { engine: -1, y: -99 };
    c.save(); c.beginPath(); c.rect(0, HEAD, width, height - HEAD); c.clip();
    for (let i = first; i < this.rows.length && offset + (i - first) * this.row < height; ++i) {
      this.drawRow(c, this.rows[i], { x, left, right, width, most, y: offset + (i - first) * this.row });
    }
    c.beginPath(); c.rect(left, 0, right - left, height); c.clip();
    for (const t of this.starts ?? []) drawStart(c, x(t), HEAD, height);
    c.restore();
    this.drawHead(c, x, left, right, width);
    if (this.rows.length === 0) {
      c.fillStyle = colour("muted"); c.textAlign = "center"; c.fillText("no requests", width / 2, height / 2);
    }
    this.canvas.setAttribute("aria-label", `${this.live} requests on a time line of the last minute; the table has them all`);
  }

  /** The scales of lag and deposit: round, and at least a second and 8 tokens. */
  bounds() {
    const live = this.rows.filter((row) => row.alive).map((row) => row.request);
    const power = (value, least) => Math.max(least, 2 ** Math.ceil(Math.log2(Math.max(value, 1e-9))));
    return { lag: power(Math.max(0, ...live.map((r) => Math.abs(r.vlt_s))), 0.125), deposit: power(Math.max(0, ...live.map((r) => Math.abs(r.deposit_tokens ?? 0))), 8) };
  }

  drawGrid(c, x, left, right, height) {
    c.strokeStyle = colour("line"); c.lineWidth = 1;
    for (let ago = 0; ago <= SPAN_S; ago += 10) {
      const at = Math.round(x(this.now - ago)) + 0.5;
      c.beginPath(); c.moveTo(at, HEAD); c.lineTo(at, height); c.stroke();
    }
  }

  drawHead(c, x, left, right, width) {
    c.fillStyle = colour("surface"); c.fillRect(0, 0, width, HEAD - 1);
    c.fillStyle = colour("muted"); c.textAlign = "center";
    const every = right - left < 300 ? 30 : 10;
    for (let ago = every; ago < SPAN_S; ago += every) c.fillText(`-${ago} s`, x(this.now - ago), HEAD / 2);
    c.textAlign = "right"; c.fillText("now", right, HEAD / 2);
    const most = this.bounds();
    c.textAlign = "center";
    c.fillText(`lag ±${secondsText(most.lag)}`, right + 14 + this.side / 2, HEAD / 2);
    c.fillText(`deposit ≤${most.deposit}`, right + 22 + this.side + this.side / 2, HEAD / 2);
  }

  drawRow(c, row, { x, left, right, width, most, y }) {
    const h = this.row - (this.row > 6 ? 3 : 1), r = row.request;
    if (row.key === this.chosen) { c.fillStyle = colour("sunken"); c.fillRect(0, y - 1, width, this.row); }
    c.globalAlpha = row.alive ? 1 : 0.4;
    for (const span of row.spans) {
      const from = Math.max(left, x(span.from)), to = x(span.to);
      c.fillStyle = colour(span.state);
      if (to > from) c.fillRect(from, y, Math.max(1.5, to - from), h);
    }
    c.fillStyle = engineColour(r.engine); c.fillRect(0, y, 4, this.row < LABELLED ? this.row : h);
    c.fillStyle = colour("ink"); c.textAlign = "left";
    const name = this.names.get(r.engine) ?? "", short = name.length > 14 ? `${name.slice(0, 13)}…` : name || String(r.engine);
    if (this.row >= LABELLED) {
      c.fillText(`${short} ${r.request}`, 10, y + h / 2 + 0.5, left - 16);
    } else if (row.alive && r.engine !== this.labelled.engine && y >= this.labelled.y + LABELLED) { // one label for rows that stand together
      this.labelled = { engine: r.engine, y };
      c.fillText(short, 10, y + 6, left - 16);
    }
    if (row.alive) {
      const middle = right + 14 + this.side / 2, lag = (this.side / 2) * Math.max(-1, Math.min(1, r.vlt_s / most.lag));
      c.fillStyle = colour(lag > 0 ? "bad" : "good");
      c.fillRect(Math.min(middle, middle + lag), y, Math.abs(lag), h);
      c.fillStyle = colour("line"); c.fillRect(middle, y - 1, 1, this.row);
      const start = right + 22 + this.side;
      c.fillStyle = colour("line"); c.fillRect(start, y - 1, 1, this.row);
      c.fillStyle = colour((r.deposit_tokens ?? 0) < 0 ? "bad" : "accent");
      c.fillRect(start + 1, y, (this.side - 2) * Math.min(1, Math.abs(r.deposit_tokens ?? 0) / most.deposit), h);
    }
    c.globalAlpha = 1;
  }

  rowAt(y) { return y < HEAD ? undefined : this.rows[Math.floor((this.place.scrollTop + y - HEAD) / this.row)]; }

  tell(row) {
    const r = row.request;
    return [`${this.engineText(r.engine)}, request ${r.request}: ${row.alive ? stateText(r.state) : "ended"}`,
      `${r.tokens} of ${r.prompt_tokens} + ${r.max_new_tokens} tokens; ${bytesText(r.hbm_bytes)} in HBM, ${bytesText(r.dram_bytes)} in DRAM`,
      `lag ${secondsText(r.vlt_s)}, deposit ${r.deposit_tokens ?? "–"}, ${r.rotations} rotations, age ${secondsText(r.age_s)}`,
      `class ${r.class ?? "of its own goals"}, goal ${goalText(r)}, late ${lateText(r)}, waits for ${waitText(r)}`].join("\n");
  }

  choose(row) {
    if (!row) return;
    this.chosen = row.key;
    this.status.textContent = this.tell(row).replaceAll("\n", "; ");
    this.draw();
  }

  key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9 };
    if (!(event.key in steps) || this.rows.length === 0) return;
    event.preventDefault();
    const now = this.rows.findIndex((row) => row.key === this.chosen);
    const at = Math.max(0, Math.min(this.rows.length - 1, now + steps[event.key]));
    const top = at * this.row, view = this.place.clientHeight - HEAD;
    if (top < this.place.scrollTop) this.place.scrollTop = top;
    if (top + this.row > this.place.scrollTop + view) this.place.scrollTop = top + this.row - view;
    this.choose(this.rows[at]);
  }
}
