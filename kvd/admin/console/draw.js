// Shared by all pictures: numbers as text, colours by name, canvases as sharp as the screen.
import { word } from "./words.js";

export function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(bytes) >= 1023.95 && unit + 1 < units.length) { bytes /= 1024; ++unit; }
  return `${shortNumber(bytes)} ${units[unit]}`;
}
export function shortNumber(value) {
  return Math.abs(value) >= 99.95 || Math.abs(value - Math.round(value)) < 0.05 ? String(Math.round(value)) : value.toFixed(1);
}
export function countText(value) {
  if (Math.abs(value) >= 1e6) return `${shortNumber(value / 1e6)} M`;
  return Math.abs(value) >= 1e4 ? `${shortNumber(value / 1e3)} k` : shortNumber(value);
}
export function secondsText(seconds) {
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.9995e-3) return `${shortNumber(seconds * 1e6)} µs`;
  if (size < 0.9995) return `${shortNumber(seconds * 1e3)} ms`;
  if (size < 100) return `${shortNumber(seconds)} s`;
  const whole = Math.round(size), sign = seconds < 0 ? "-" : "";
  if (size < 7200) return `${sign}${Math.floor(whole / 60)} min`;
  return `${sign}${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}
export const percentText = (share) => (share === null ? "–" : `${(100 * share).toFixed(share > 0.9995 || share === 0 ? 0 : 1)} %`);

let colours = new Map();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours = new Map(); });
/** A colour of console.css by its name. */
export function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colours.get(name);
}
/** There are colours for any number of engines: engines with neighbouring numbers are far apart
 *  in hue. */
export function engineColour(id) {
  const light = matchMedia("(prefers-color-scheme: dark)").matches ? 0.72 : 0.6;
  return `oklch(${light} 0.13 ${(id * 137.508 + 230) % 360})`;
}

/** The canvas's context, its size in CSS pixels, cleared. */
export function begin(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.parentElement.clientWidth ? canvas.clientWidth : 0;
  canvas.style.height = `${height}px`;
  const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixels[0]) canvas.width = pixels[0];
  if (canvas.height !== pixels[1]) canvas.height = pixels[1];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
  context.textBaseline = "middle";
  return { context, width, height };
}

/** Draws a broken line where kvd started. The caller clips what lies outside. */
export function drawStart(c, x, top, bottom) {
  c.strokeStyle = c.fillStyle = colour("warn"); c.lineWidth = 1;
  c.setLineDash([4, 3]);
  c.beginPath(); c.moveTo(x, top); c.lineTo(x, bottom); c.stroke();
  c.setLineDash([]);
  const room = x > 160; // before the line
  c.textAlign = room ? "right" : "left"; c.fillText("kvd started", x + (room ? -4 : 4), top + 7);
}

/** An element with attributes and children; text goes in as text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Fills a legend: [text, colour name or colour, "line"?]. What changes often, numbers, is explained elsewhere. */
export function legend(element, entries) {
  const wanted = JSON.stringify([entries, colour("ground")]);
  if (element.dataset.wanted === wanted) return;
  element.dataset.wanted = wanted;
  element.replaceChildren(...entries.map(([text, name, kind]) => {
    const mark = make("i", { class: kind || "" });
    mark.style.background = name.includes("(") ? name : colour(name);
    return make("span", {}, mark, /[\d–]/.test(text) ? text : word(text));
  }));
}

const tip = document.getElementById("tip");
export function showTip(text, event) {
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = 0; // as wide as it may become
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - box.width - 8)}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18}px`;
}
export function hideTip() { tip.hidden = true; }
