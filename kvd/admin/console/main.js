// The page: takes each overview apart and hands it to the pictures.
import { follow, History, token } from "./feed.js";
import { bytesText, countText, engineColour, legend, make, percentText, secondsText } from "./draw.js";
import { LineChart } from "./charts.js";
import { TierMap, SLOT_STATES } from "./slabs.js";
import { STATES, stateText, TimeLine } from "./requests.js";
import { Plans } from "./plan.js";
import { Settings } from "./settings.js";
import { showCache, showService } from "./service.js";
import { fillTable } from "./tables.js";
import { word } from "./words.js";

const at = (id) => document.getElementById(id);
const history = new History();
const settings = new Settings();
const timeLine = new TimeLine(at("timeline"), at("timeline-status"), at("requests-data"));
const plans = new Plans(at("plans"));
const tiers = ["hbm", "dram"].map((tier) => new TierMap(tier));
at("tiers").append(...tiers.map((tier) => tier.element));
const rateText = (y) => `${bytesText(y)}/s`;
const charts = {
  link: new LineChart("Copies over the link", [{ name: "out of HBM", colour: "out" }, { name: "into HBM", colour: "in" }], rateText, "bytes"),
  rotations: new LineChart("Rotations a second", [{ name: "out", colour: "out" }, { name: "in", colour: "in" }], countText),
  tokens: new LineChart("Tokens a second", [{ name: "all engines", colour: "running" }], countText),
  slo: new LineChart("Goals met, last minute", [{ name: "TTFT", colour: "ttft" }, { name: "TBT", colour: "tbt" }], percentText, 1),
  prefix: new LineChart("Prompt tokens found, last minute", [{ name: "HBM", colour: "hbm" }, { name: "DRAM", colour: "dram" }], percentText, 1),
};
at("charts").append(...Object.values(charts).map((chart) => chart.element), at("flight"));
at("flight").hidden = false;

let overview = null;
let before = null; // the overview before, for what engines make a second

function tile(name, value, note, mood = "") {
  return { name, value, note, mood };
}

function showTiles({ status, cache }) {
  const held = (pool) => pool.capacity_bytes - pool.available_bytes - pool.missing_bytes;
  const use = (pool) => held(pool) / Math.max(1, pool.capacity_bytes);
  const [hbm, dram] = status.pools, r = status.requests;
  const live = Object.values(r).reduce((a, b) => a + b, 0);
  const per = (key, seconds = 10) => {
    const span = history.growth("t", seconds);
    return span > 0 ? history.growth(key, seconds) / span : 0;
  };
  const goal = (name) => history.share(`${name}_met`, `${name}_missed`).pop()?.y ?? null;
  const mood = (share) => (share === null || share >= 0.99 ? "" : share >= 0.9 ? "warn" : "bad");
  const found = cache.prompt_tokens > 0 ? (cache.found_tokens.hbm + cache.found_tokens.dram) / cache.prompt_tokens : null;
  const total = (c) => (c.met + c.missed > 0 ? `${percentText(c.met / (c.met + c.missed))} of ${countText(c.met + c.missed)} in all` : "none yet");
  const tiles = [
    tile("Requests", String(live), `${r.running} running, ${r.waiting} waiting, ${r.rotary + r.swapping_in + r.swapping_out} rotated`),
    tile("HBM in use", percentText(use(hbm)), `${bytesText(held(hbm))} of ${bytesText(hbm.capacity_bytes)}, ${bytesText(hbm.cached_bytes)} cached`),
    tile("DRAM in use", percentText(use(dram)), `${bytesText(held(dram))} of ${bytesText(dram.capacity_bytes)}, ${bytesText(dram.cached_bytes)} cached`),
    tile("Tokens a second", countText(per("tokens")), `${countText(history.last.tokens)} in all`),
    tile("TTFT met", percentText(goal("ttft")), total(status.counters.ttft), mood(goal("ttft"))),
    tile("TBT met", percentText(goal("tbt")), total(status.counters.tbt), mood(goal("tbt"))),
    tile("Rotations a second", countText(per("rotations_out") + per("rotations_in")), `${countText(history.last.rotations_out)} out, ${countText(history.last.rotations_in)} in`),
    tile("Prefix found", percentText(found), `${bytesText(cache.cached_bytes.hbm + cache.cached_bytes.dram)} cached`),
  ];
  const place = at("tiles");
  tiles.forEach(({ name, value, note, mood: how }, i) => {
    const one = place.children[i] ?? place.appendChild(make("dl", { class: "tile" }, make("dt", {}, word(name)), make("dd", { class: "value" }), make("dd", { class: "note" })));
    one.dataset.mood = how;
    [value, note].forEach((text, j) => { if (one.children[j + 1].textContent !== text) one.children[j + 1].textContent = text; });
  });
}

function showCharts() {
  const put = (chart, ...lines) => chart.show(lines, history.last.t, history.starts);
  put(charts.link, history.rate("d2h"), history.rate("h2d"));
  put(charts.rotations, history.rate("rotations_out"), history.rate("rotations_in"));
  put(charts.tokens, history.rate("tokens"));
  put(charts.slo, history.share("ttft_met", "ttft_missed"), history.share("tbt_met", "tbt_missed"));
  const part = (key) => history.samples.map((s, i) => {
    const asked = history.growth("asked", 60, i);
    return { t: s.t, y: asked > 0 ? history.growth(key, 60, i) / asked : null };
  });
  put(charts.prefix, part("found_hbm"), part("found_dram"));
}

function engineNames({ engines }) {
  return new Map(engines.engines.map((engine) => [engine.id, engine.name]));
}

function showFlight(o) {
  const names = engineNames(o);
  const moving = o.requests.requests.filter((r) => r.state.startsWith("swapping"));
  const slots = (state) => o.pools.pools.reduce((sum, pool) => sum + pool.slots[state], 0);
  at("flight-text").textContent = `${moving.length} requests; ${slots("filling")} slots are being filled, ${slots("draining")} drained`;
  fillTable(at("flight-table"), ["engine", "#request", "direction", "#HBM", "#lag"],
    moving.slice(0, 200).map((r) => [`${r.engine} ${names.get(r.engine) ?? ""}`, r.request, r.state === "swapping_out" ? "out of HBM" : "into HBM",
      bytesText(r.hbm_bytes), secondsText(r.vlt_s)]), "no request is on its way at this moment");
}

function showEngines(o) {
  const past = new Map(before?.engines.engines.map((engine) => [engine.id, engine]) ?? []);
  const span = before ? o.now_s - before.now_s : 0;
  const all = (classes, goal, key) => classes.reduce((sum, one) => sum + one[goal][key], 0);
  const met = ({ classes }, goal) => {
    const good = all(classes, goal, "met"), bad = all(classes, goal, "missed");
    return good + bad > 0 ? percentText(good / (good + bad)) : "–";
  };
  const oldest = ({ classes }) => {
    const wait = Math.max(0, ...classes.map((one) => one.oldest_wait_s));
    return wait > 0 ? secondsText(wait) : "–";
  };
  const rate = (engine, key) => (past.has(engine.id) && span > 0 ? countText((engine[key] - past.get(engine.id)[key]) / span) : "–");
  fillTable(at("engines-table"), ["#id", "name", "domain", "state", "#level", "#requests", "#HBM", "#DRAM", "#regions", "#tokens/s", "#steps/s", "#rotated out", "#in", "#TTFT met", "#TBT met", "#oldest wait", "#idle", "#pid"],
    o.engines.engines.map((e) => [e.id, e.name, e.domain, e.state, e.level, e.requests, bytesText(e.hbm_bytes), bytesText(e.dram_bytes), bytesText(e.region_bytes),
      rate(e, "tokens"), rate(e, "steps"), e.rotations_out, e.rotations_in, met(e, "ttft"), met(e, "tbt"), oldest(e), secondsText(e.idle_s), e.pid]), "no engine is attached");
}

function showEvents(o) {
  const names = engineNames(o);
  fillTable(at("events-table"), ["#number", "#ago", "severity", "engine", "~what"], o.events.events.slice().reverse().map((e) =>
    [e.sequence, secondsText(e.age_s), e.level, e.engine ? `${e.engine} ${names.get(e.engine) ?? ""}` : "–", e.text]), "nothing happened yet");
}

/** Keeps the user's choice while engines come and go. */
function fillChoices(select, options) {
  const wanted = JSON.stringify(options);
  if (select.dataset.wanted === wanted) return;
  select.dataset.wanted = wanted;
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  select.value = options.some(([value]) => value === chosen) ? chosen : "";
}

function legends() {
  legend(at("slab-legend"), tiers[0].mode === "state" ? [...SLOT_STATES.map((state) => [state, state]), ["region", "region"], ["of nobody", "line"]]
    : (overview?.engines.engines ?? []).slice(0, 12).map((e) => [`${e.id} ${e.name}`, engineColour(e.id)]));
  legend(at("request-legend"), STATES.map((state) => [stateText(state), state]));
  legend(at("plan-legend"), [["in HBM", "hbm"], ["in DRAM, streams", "dram"]]);
}

function show(o) {
  before = overview;
  overview = o;
  history.add(o);
  const s = o.status;
  at("daemon").textContent = `${s.version} · ${s.backend}${s.gpu ? ` ${s.gpu.name}` : ""} · up ${secondsText(s.uptime_s)} · ${s.policy.rotation}, ${s.policy.placement}, ${s.policy.admission}`;
  showTiles(o);
  o.pools.pools.forEach((pool, i) => tiers[i].show(pool, o.engines.engines));
  fillChoices(at("request-engine"), [["", "all"], ...o.engines.engines.map((e) => [String(e.id), `${e.id} ${e.name}`])]);
  timeLine.filter.engine = at("request-engine").value;
  timeLine.show(o.requests.requests, o.engines.engines, o.now_s, s.boot_id, history.starts);
  showCharts();
  showFlight(o);
  plans.show(o.plan.plans, o.engines.engines);
  showEngines(o);
  showEvents(o);
  showCache(o);
  legends();
}

function redraw() {
  if (!overview) return;
  tiers.forEach((tier) => tier.redraw());
  timeLine.draw();
  Object.values(charts).forEach((chart) => chart.draw());
  plans.redraw();
  legends();
}

at("slab-mode").addEventListener("change", (event) => {
  tiers.forEach((tier) => { tier.mode = event.target.value; });
  redraw();
});
at("chart-span").addEventListener("change", (event) => {
  LineChart.most = Number(event.target.value);
  redraw();
});
fillChoices(at("request-state"), [["", "all"], ...STATES.map((state) => [state, stateText(state)])]);
for (const [id, key] of [["request-engine", "engine"], ["request-state", "state"], ["request-order", "order"]]) {
  at(id).addEventListener("change", (event) => {
    timeLine.filter[key] = event.target.value;
    timeLine.arrange();
  });
}
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTimeout(redraw));

const TEXTS = { live: "live", polling: "live, by asking", lost: "kvd does not answer", token: "wants the token" };
const SERVICE_MS = 5000; // how often what the overview lacks is read
let settled = false;
let heard = null; // when kvd last answered, by this browser's clock
let tokenGiven = () => {};
at("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.text = at("read-token").value.trim();
  tokenGiven();
});
setInterval(() => { if (settled && !document.hidden) showService().catch(() => {}); }, SERVICE_MS);
follow({
  history: (kept) => history.fill(kept),
  overview: show,
  state: (state) => {
    const answers = state === "live" || state === "polling";
    if (answers) heard = new Date();
    document.body.dataset.state = answers ? "live" : state;
    const since = state === "lost" && heard ? ` since ${heard.toLocaleTimeString()}, ${secondsText(Math.round((Date.now() - heard) / 1000))}` : "";
    at("live-text").textContent = TEXTS[state] + since;
    at("token-form").hidden = state !== "token";
    if (answers && !settled) {
      settings.load();
      showService().catch(() => {});
    }
    settled = answers;
  },
}, () => new Promise((resolve) => { tokenGiven = resolve; }));
