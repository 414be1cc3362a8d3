// The placement plan of each engine: which layer groups of a request live in DRAM and stream.
import { begin, colour, make, secondsText } from "./draw.js";
import { fillDetails, makeDetails } from "./tables.js";

const MOST_ROWS = 40, ROW = 12, LEFT = 64;

class PlanPicture {
  constructor() {
    this.title = make("h3");
    this.text = make("p", { class: "muted" });
    this.canvas = make("canvas", { role: "img" });
    this.details = makeDetails();
    this.element = make("figure", { class: "card" }, make("div", { class: "head" }, this.title, this.text), this.canvas, this.details);
  }

  show(plan, name) {
    this.plan = plan;
    this.title.textContent = `${plan.engine} ${name}`;
    this.text.textContent = plan.policy === "" ? (plan.solving ? "its first plan is being made" : "no plan: all layers stay in HBM")
      : `${plan.policy}${plan.fallback ? " (the chosen policy's did not fit)" : ""}, plan ${plan.number}, ${plan.steps_left} steps left; a step ${secondsText(plan.step_s)}, ${secondsText(plan.stall_s)} of it for layers`;
    this.draw();
    fillDetails(this.details, ["#request", "#distance", "paused", "~layer groups in DRAM"],
      () => plan.requests.map((r) => [r.request, r.distance || "–", r.paused ? "yes" : "–", r.groups_in_dram.join(" ") || "–"]), "no requests in the plan");
  }

  draw() {
    const requests = this.plan.requests.slice(0, MOST_ROWS);
    const groups = Math.max(this.plan.layer_groups, 1, ...requests.flatMap((r) => r.groups_in_dram));
    const { context: c, width } = begin(this.canvas, requests.length === 0 ? 0 : requests.length * ROW + 20);
    const cell = (width - LEFT) / groups;
    requests.forEach((request, i) => {
      const away = new Set(request.groups_in_dram), y = i * ROW;
      c.fillStyle = colour(request.paused ? "warn" : "muted"); c.textAlign = "right";
      c.fillText(request.paused ? `${request.request} paused` : request.request, LEFT - 8, y + ROW / 2, LEFT - 10);
      for (let group = 1; group <= groups; ++group) {
        c.fillStyle = colour(away.has(group) ? "dram" : "hbm");
        c.fillRect(LEFT + (group - 1) * cell, y, Math.max(1, cell - (cell > 4 ? 1 : 0)), ROW - 2);
      }
    });
    if (requests.length > 0) {
      c.fillStyle = colour("muted"); c.textAlign = "left";
      const more = this.plan.requests.length - requests.length;
      c.fillText(`layer group 1${more > 0 ? `; ${more} requests more in the table` : ""}`, LEFT, requests.length * ROW + 10);
      c.textAlign = "right"; c.fillText(String(groups), width, requests.length * ROW + 10);
    }
    const streaming = this.plan.requests.filter((r) => r.groups_in_dram.length > 0).length;
    this.canvas.setAttribute("aria-label", `${groups} layer groups; ${streaming} of ${this.plan.requests.length} requests stream some of them`);
  }
}

export class Plans {
  pictures = new Map();
  constructor(place) { this.place = place; }

  show(plans, engines) {
    const names = new Map(engines.map((engine) => [engine.id, engine.name]));
    for (const [id, picture] of this.pictures) {
      if (plans.some((plan) => plan.engine === id)) continue;
      picture.element.remove();
      this.pictures.delete(id);
    }
    this.none ??= make("p", { class: "card empty" }, "No engine is attached whose layers may stream.");
    plans.length === 0 ? this.place.append(this.none) : this.none.remove();
    for (const plan of plans) {
      let picture = this.pictures.get(plan.engine);
      if (!picture) {
        picture = new PlanPicture();
        this.pictures.set(plan.engine, picture);
        this.place.append(picture.element);
      }
      picture.show(plan, names.get(plan.engine) ?? "");
    }
  }

  redraw() { for (const picture of this.pictures.values()) picture.draw(); }
}
