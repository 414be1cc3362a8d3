// Lines over the last minutes, with a mark where kvd started.
import { begin, colour, drawStart, hideTip, legend, make, secondsText, showTip } from "./draw.js";
import { fillDetails, makeDetails } from "./tables.js";
import { word } from "./words.js";

const LEAST_S = 120, ROWS = 120;
const LEFT = 72, RIGHT = 10, TOP = 8, BOTTOM = 20;

function niceTop(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * unit).find((step) => step >= value);
}
/** The same for bytes: rounds to a power of two. */
const niceBytes = (value) => (value > 0 ? 2 ** Math.ceil(Math.log2(value)) : 1);

export class LineChart {
  static most = 900; // how many seconds are shown, if there are that many

  /** `lines`: [{ name, colour }]; `text(y)`; `top`: fixed upper bound, "bytes", or none. */
  constructor(title, lines, text, top) {
    this.lines = lines;
    this.text = text;
    this.top = top;
    this.points = [];
    this.legend = make("p", { class: "legend" });
    this.canvas = make("canvas", { role: "img", "aria-label": title });
    this.details = makeDetails();
    this.element = make("figure", { class: "card" },
      make("div", { class: "head" }, make("h3", {}, word(title)), this.legend), this.canvas, this.details);
    this.title = title;
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.at = null; hideTip(); this.draw(); });
  }

  /** `series`: points { t, y } of each line; y null: there is none. `starts`: when kvd began. */
  show(series, now, starts) {
    this.points = series;
    this.now = now;
    this.starts = starts;
    this.draw();
    const last = series.map((line) => line[line.length - 1]?.y ?? null);
    legend(this.legend, this.lines.map((line, i) => [`${line.name} ${last[i] === null ? "–" : this.text(last[i])}`, line.colour, "line"]));
    this.canvas.setAttribute("aria-label", `${this.title}. Now: ${this.lines.map((line, i) => `${line.name} ${last[i] === null ? "nothing yet" : this.text(last[i])}`).join(", ")}${
      starts.filter((t) => now - t < this.span()).map((t) => `; kvd started ${secondsText(Math.round(now - t))} ago`).join("")}`);
    fillDetails(this.details, ["#seconds ago", ...this.lines.map((line) => `#${line.name}`)], () => this.rows(), "nothing yet");
  }

  rows() {
    const longest = this.points.reduce((a, b) => (b.length > a.length ? b : a), []);
    return longest.map((_, i) => i).reverse().slice(0, ROWS).map((i) => [
      Math.round(this.now - longest[i].t),
      ...this.points.map((line) => (line[i] && line[i].y !== null ? this.text(line[i].y) : "–"))]);
  }

  /** The axis begins where the data does. */
  span() {
    const first = Math.min(...this.points.map((line) => line[0]?.t ?? this.now));
    return Math.max(LEAST_S, Math.min(LineChart.most, this.now - first));
  }

  upper() {
    if (typeof this.top === "number") return this.top;
    const from = this.now - this.span();
    const most = Math.max(0, ...this.points.flat().filter((p) => p.t >= from).map((p) => p.y ?? 0));
    return this.top === "bytes" ? niceBytes(most) : niceTop(most);
  }

  draw() {
    const { context: c, width, height } = begin(this.canvas, 168);
    if (this.points.length === 0) return;
    const span = this.span(), upper = this.upper(), plot = { w: width - LEFT - RIGHT, h: height - TOP - BOTTOM };
    const x = (t) => LEFT + plot.w * (1 - (this.now - t) / span), y = (v) => TOP + plot.h * (1 - v / upper);
    this.x = x;
    c.lineWidth = 1;
    for (const share of [0, 0.5, 1]) {
      c.strokeStyle = colour("line");
      c.beginPath(); c.moveTo(LEFT, Math.round(y(share * upper)) + 0.5); c.lineTo(width - RIGHT, Math.round(y(share * upper)) + 0.5); c.stroke();
      c.fillStyle = colour("muted"); c.textAlign = "right";
      c.fillText(this.text(share * upper), LEFT - 7, y(share * upper));
    }
    c.textAlign = "center";
    const step = [30, 60, 120, 300].find((s) => span / s <= 4);
    for (let ago = step; ago <= span; ago += step) c.fillText(ago < 120 ? `-${ago} s` : `-${ago / 60} min`, Math.max(x(this.now - ago), LEFT + 16), height - 8);
    c.textAlign = "right"; c.fillText("now", width - RIGHT, height - 8);
    c.save(); c.beginPath(); c.rect(LEFT, 0, plot.w + RIGHT, height); c.clip();
    c.lineJoin = "round";
    for (const t of this.starts) drawStart(c, x(t), TOP, height - BOTTOM);
    c.lineWidth = 2;
    this.points.forEach((line, i) => {
      c.strokeStyle = colour(this.lines[i].colour);
      c.beginPath();
      let drawing = false;
      for (const p of line) {
        if (p.y === null) { drawing = false; continue; }
        drawing ? c.lineTo(x(p.t), y(p.y)) : c.moveTo(x(p.t), y(p.y));
        drawing = true;
      }
      c.stroke();
    });
    if (this.at !== undefined && this.at !== null) {
      c.lineWidth = 1; c.strokeStyle = colour("muted"); c.beginPath(); c.moveTo(x(this.at), TOP); c.lineTo(x(this.at), height - BOTTOM); c.stroke();
    }
    c.restore();
  }

  point(event) {
    const longest = this.points.reduce((a, b) => (b.length > a.length ? b : a), []);
    if (longest.length === 0) return;
    const distance = (p) => Math.abs(this.x(p.t) - event.offsetX);
    const at = longest.reduce((best, p, i) => (distance(p) < distance(longest[best]) ? i : best), 0);
    this.at = longest[at].t;
    this.draw();
    showTip([`${Math.round(this.now - this.at)} s ago`, ...this.lines.map((line, i) => {
      const y = this.points[i][at]?.y ?? null;
      return `${line.name}: ${y === null ? "–" : this.text(y)}`;
    })].join("\n"), event);
  }
}
