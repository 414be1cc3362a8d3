// Draws a tier as a map: each square is a slab, its small squares are slots.
import { begin, bytesText, colour, engineColour, hideTip, legend, make, percentText, showTip } from "./draw.js";
import { fillDetails, makeDetails } from "./tables.js";
import { word } from "./words.js";

export const SLOT_STATES = ["sealed", "open", "filling", "draining", "quarantined", "scrubbing", "free"];
const GAP = 3, MOST_HEIGHT = 300;

export class TierMap {
  constructor(tier) {
    this.tier = tier;
    this.mode = "state";
    this.chosen = -1;
    this.slabs = [];
    this.names = new Map();
    this.numbers = make("p", { class: "numbers" });
    this.bar = make("canvas", { role: "img" });
    this.canvas = make("canvas", { role: "img", class: "grid", tabindex: "0" });
    this.status = make("p", { class: "status", "aria-live": "polite" }, "Each square is a slab; choose one with the pointer or the arrow keys.");
    this.details = makeDetails();
    this.element = make("figure", { class: "card" },
      make("div", { class: "head" }, make("h3", {}, word(tier.toUpperCase())), this.bar.legend = make("p", { class: "legend" })),
      this.bar, this.numbers, this.canvas, this.status, this.details);
    this.canvas.addEventListener("pointermove", (event) => {
      const at = this.slabAt(event.offsetX, event.offsetY);
      at === undefined ? hideTip() : showTip(this.tell(this.slabs[at]), event);
    });
    this.canvas.addEventListener("pointerleave", hideTip);
    this.canvas.addEventListener("click", (event) => this.choose(this.slabAt(event.offsetX, event.offsetY) ?? -1));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  show(pool, engines) {
    this.pool = pool;
    this.slabs = pool.slab_list;
    this.names = new Map(engines.map((engine) => [engine.id, engine.name]));
    this.redraw();
    fillDetails(this.details, ["#slab", "use", "#slots", "#used", ...SLOT_STATES.map((state) => `#${state}`), "#class", "#domain", "engines"],
      () => this.slabs.map((s) => [s.slab, s.use, s.slots, s.used, ...SLOT_STATES.map((state) => s.by_state[state]), s.class, s.domain, this.enginesText(s)]));
  }

  redraw() {
    if (!this.pool) return;
    this.drawBar();
    this.drawMap();
  }

  drawBar() {
    const p = this.pool, total = p.capacity_bytes || 1;
    const parts = [["requests", p.request_bytes, "sealed"], ["regions", p.region_bytes, "region"],
      ["quarantined", p.quarantined_bytes, "quarantined"], ["cached", p.cached_bytes, "cached"], ["free", p.free_bytes, "free"]];
    const { context: c, width } = begin(this.bar, 14);
    let x = 0;
    for (const [, bytes, tint] of parts) {
      const w = (width * bytes) / total;
      c.fillStyle = colour(tint);
      if (w > 0) c.fillRect(x, 0, Math.max(1, w - 1), 14);
      x += w;
    }
    legend(this.bar.legend, parts.filter(([name, bytes]) => bytes > 0 || name === "free").map(([name, bytes, tint]) => [`${name} ${bytesText(bytes)}`, tint]));
    this.bar.setAttribute("aria-label", `${this.tier}: ${parts.map(([name, bytes]) => `${name} ${bytesText(bytes)}`).join(", ")}`);
    const numbers = [["capacity", bytesText(p.capacity_bytes)], ["available", percentText(p.available_bytes / total)], ["stranded", bytesText(p.stranded_bytes)],
      ["slabs", `${p.slabs} of ${bytesText(p.slab_bytes)}`], ["unassigned", p.slabs_unassigned], ["pages", p.pages]];
    numbers.forEach(([name, value], i) => {
      const one = this.numbers.children[i] ?? this.numbers.appendChild(make("span", {}, word(name), " ", make("b")));
      one.lastChild.textContent = value;
    });
  }

  /** The largest squares with which all slabs fit. */
  layout(width) {
    const count = Math.max(1, this.slabs.length);
    let cell = Math.min(54, Math.max(6, Math.floor(Math.sqrt((width * MOST_HEIGHT) / count))));
    let columns = Math.max(1, Math.floor((width + GAP) / cell));
    while (cell > 6 && Math.ceil(count / columns) * cell > MOST_HEIGHT) columns = Math.max(1, Math.floor((width + GAP) / --cell));
    return { cell, columns, rows: Math.ceil(count / columns) };
  }

  drawMap() {
    const { cell, columns, rows } = (this.grid = this.layout(this.canvas.clientWidth));
    const { context: c } = begin(this.canvas, rows * cell);
    const gap = cell > 14 ? GAP : 1, size = cell - gap;
    this.slabs.forEach((slab, i) => {
      const x = (i % columns) * cell, y = Math.floor(i / columns) * cell;
      this.drawSlab(c, slab, x, y, size);
      if (i === this.chosen) {
        c.strokeStyle = colour("ink"); c.lineWidth = 2;
        c.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
      }
    });
    const used = this.slabs.filter((slab) => slab.used > 0 || slab.use === "region").length;
    this.canvas.setAttribute("aria-label", `Map of ${this.slabs.length} slabs of ${this.tier}, ${used} of them in use. Arrow keys choose one.`);
  }

  drawSlab(c, slab, x, y, size) {
    c.fillStyle = colour("free");
    c.fillRect(x, y, size, size);
    if (slab.use === "region") {
      c.fillStyle = this.mode === "engine" ? engineColour(slab.engine) : colour("region");
      c.fillRect(x, y, size, size);
    } else if (slab.use === "quarantined" || slab.use === "scrubbing") {
      c.fillStyle = colour(slab.use);
      c.fillRect(x, y, size, size);
    } else if (slab.slots > 0) {
      this.mode === "engine" ? this.drawEngines(c, slab, x, y, size) : this.drawStates(c, slab, x, y, size);
    }
    if (slab.slots === 0 && slab.use !== "region" && size > 10) { // nobody's: hollow
      c.fillStyle = colour("line");
      c.fillRect(x, y, size, size);
      c.fillStyle = colour("surface");
      c.fillRect(x + 1, y + 1, size - 2, size - 2);
    }
  }

  drawStates(c, slab, x, y, size) {
    const across = Math.ceil(Math.sqrt(slab.slots)), step = size / across;
    if (step >= 3) { // a square a slot
      let i = 0;
      for (const state of SLOT_STATES) {
        c.fillStyle = colour(state);
        for (let n = slab.by_state[state]; n > 0; --n, ++i) {
          if (state === "free") continue;
          const left = x + (i % across) * step, top = y + Math.floor(i / across) * step;
          c.fillRect(left, top, step - (step > 4 ? 1 : 0.5), step - (step > 4 ? 1 : 0.5));
        }
      }
      return;
    }
    let bottom = y + size; // a band a state
    for (const state of SLOT_STATES) {
      if (state === "free") continue;
      const h = (size * slab.by_state[state]) / slab.slots;
      c.fillStyle = colour(state);
      c.fillRect(x, bottom - h, size, h);
      bottom -= h;
    }
  }

  /** Draws the engines that map the slab, side by side. No engine maps DRAM: it has its domain's colour. */
  drawEngines(c, slab, x, y, size) {
    const tints = slab.mapped_by.length > 0 ? slab.mapped_by.map(engineColour) : slab.used > 0 ? [colour("waiting")] : [];
    const h = size * Math.max(slab.used > 0 ? 0.12 : 0, slab.used / slab.slots);
    tints.forEach((tint, i) => {
      c.fillStyle = tint;
      c.fillRect(x + (size * i) / tints.length, y + size - h, size / tints.length, h);
    });
  }

  enginesText(slab) {
    const name = (id) => `${id} ${this.names.get(id) ?? ""}`.trim();
    if (slab.engine) return name(slab.engine);
    const named = slab.mapped_by.map(name).join(", ");
    return slab.engines_mapping > slab.mapped_by.length ? `${named} and ${slab.engines_mapping - slab.mapped_by.length} more` : named || "–";
  }

  tell(slab) {
    const states = SLOT_STATES.filter((state) => slab.by_state[state] > 0).map((state) => `${slab.by_state[state]} ${state}`).join(", ");
    return [`slab ${slab.slab}: ${slab.use}${slab.retiring ? ", kept for a region" : ""}`,
      slab.slots ? `${slab.used} of ${slab.slots} slots used${states ? `: ${states}` : ""}` : "", `engines: ${this.enginesText(slab)}`].filter(Boolean).join("\n");
  }

  slabAt(x, y) {
    const at = Math.floor(y / this.grid.cell) * this.grid.columns + Math.floor(x / this.grid.cell);
    return x < this.grid.columns * this.grid.cell && at < this.slabs.length ? at : undefined;
  }

  choose(at) {
    this.chosen = at;
    this.status.textContent = at < 0 ? "" : this.tell(this.slabs[at]).replaceAll("\n", "; ");
    this.drawMap();
  }

  key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.grid.columns, ArrowUp: -this.grid.columns, Home: -1e9, End: 1e9 };
    if (!(event.key in steps) || this.slabs.length === 0) return;
    event.preventDefault();
    this.choose(Math.max(0, Math.min(this.slabs.length - 1, this.chosen + steps[event.key])));
  }
}
