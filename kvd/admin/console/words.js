// Explains the page's words, to the pointer and to the keyboard. docs/concepts.md has them at length.
import { hideTip, make, showTip } from "./draw.js";

// Longer ones first where one contains another: the first that a text contains is explained.
const WORDS = {
  "layer group": "Some layers of the model, which move together.",
  "oldest wait": "How long the request has waited that waits longest, now.",
  "swapping out": "The request's memory is being copied from HBM to DRAM.",
  "swapping in": "The request's memory is being copied from DRAM back to HBM.",
  "rotated out": "How often a request of the engine left HBM to make room.",
  TTFT: "Time to first token: from the arrival of a request to its first token. It has a goal.",
  TBT: "Time between two tokens of a request. It has a goal.",
  TPOT: "Time per output token: the mean time between the tokens of a request.",
  gap: "The longest wait for a token after the first.",
  goal: "How soon tokens have to come, by class of request (SLO).",
  rotat: "A request leaves HBM for DRAM so that another can run, and comes back later.",
  waiting: "The request is submitted, and holds no memory yet.",
  prefill: "The request's prompt is being computed.",
  running: "The request makes tokens.",
  rotary: "The request has its prompt and is out of HBM, in DRAM. It goes on where it was.",
  lag: "How overdue a request is to run. Red: overdue. Negative while it runs.",
  deposit: "Tokens that are made and not yet due to the reader. They last while the request is out of HBM.",
  late: "How long ago the next token of the request should have come.",
  class: "Which goals hold for a request.",
  prefix: "Prompts that begin alike share what was computed for the beginning.",
  "prompt tokens": "Prompts that begin alike share what was computed for the beginning.",
  available: "What is free, and what is cached: whoever needs memory can have both.",
  cached: "Blocks that no request uses now. They are found again, or make way.",
  stranded: "Free slots in slabs that are partly used: only models of the same size can have them.",
  region: "Whole slabs that an engine rents and fills as it likes.",
  quarantined: "Of an engine that died: nobody gets it before nothing can write it any more.",
  scrubbing: "Being zeroed before others get it.",
  filling: "A copy or a prompt is writing these slots.",
  draining: "Given up, but a copy still reads them.",
  sealed: "Full blocks, which never change again.",
  open: "The last block of a request, partly full.",
  unassigned: "Slabs of nobody: any model can have them.",
  slab: "A large piece of memory, cut into slots of one size, or rented whole as a region.",
  slot: "The place of one block: the keys and values of a few tokens in some layers.",
  block: "The keys and values (KV) of a few tokens in some layers of the model.",
  guaranteed: "Memory that a domain always has, lent to nobody.",
  "at most": "More than this a domain never gets.",
  "over it": "What a domain has above its maximum, and gives back.",
  domain: "Engines that trust each other: they share memory and cache, and have one quota.",
  level: "What the engine leaves to kvd. 1: memory. 2: the cache, too. 3: also who runs.",
  stream: "Layers that stay in DRAM and come into HBM just in time.",
  paused: "The request stands still, so that the others' layers come in time.",
  distance: "Every so-many-th layer group of the request is in DRAM and streams.",
  "out of service": "Drained: it gets nothing new, and ends what it has.",
  idle: "Time since the engine's last sign of life.",
  HBM: "The memory that engines compute in, a GPU's. Without a GPU, memory of the machine.",
  DRAM: "The machine's memory, where kvd keeps what has no place in HBM.",
  engine: "A program that runs a model, such as vLLM, on memory of kvd.",
  polic: "The rules by which kvd decides who runs, and where memory is.",
};

/** The text, which explains itself where it contains one of the words. */
export function word(text) {
  const lower = text.toLowerCase(), found = Object.keys(WORDS).find((one) => lower.includes(one.toLowerCase()));
  return found ? make("span", { class: "word", tabindex: "0", "aria-description": WORDS[found] }, text) : text;
}

function show(event) {
  const at = event.target.closest?.(".word");
  if (!at) return hideTip();
  const box = at.getBoundingClientRect();
  showTip(at.getAttribute("aria-description"), event.type === "focusin" ? { clientX: box.left - 14, clientY: box.bottom - 12 } : event);
}
for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, show);
document.addEventListener("focusout", hideTip);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
for (const title of document.querySelectorAll("h2, h3")) title.replaceChildren(word(title.textContent));
