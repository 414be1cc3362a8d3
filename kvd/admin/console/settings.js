// Edits policies and latency goals. A change is shown before it is sent, and kvd takes it only for
// the version that was read.
import { ask, Refused, token } from "./feed.js";
import { make } from "./draw.js";
import { fillTable } from "./tables.js";
import { word } from "./words.js";

/** { "rotation.alpha": 3, … } of a document. */
function leaves(node, path = "", out = {}) {
  if (node === null || typeof node !== "object") out[path] = node;
  else for (const [key, value] of Object.entries(node)) leaves(value, path ? `${path}.${key}` : key, out);
  return out;
}
/** A merge-patch of [[path parts, value]]. */
function patchOf(changes) {
  const patch = {};
  for (const { parts, after } of changes) {
    let at = patch;
    for (const part of parts.slice(0, -1)) at = at[part] ??= {};
    at[parts[parts.length - 1]] = after;
  }
  return patch;
}
const shown = (value) => (value === undefined ? "–" : value === null ? "removed" : JSON.stringify(value));

/** What the schema says about a key of the policy document. */
function schemaOf(openapi, path) {
  let at = openapi?.components?.schemas?.Policy;
  for (const part of path.split(".")) at = at?.properties?.[part];
  return at;
}

class Review {
  dialog = document.getElementById("review");
  diff = document.getElementById("review-diff");
  error = document.getElementById("review-error");
  field = document.getElementById("review-token");

  constructor() {
    document.getElementById("review-cancel").addEventListener("click", () => this.dialog.close());
    document.getElementById("review-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
  }

  open(path, changes, etag, done) {
    this.pending = { path, patch: patchOf(changes), etag, done };
    fillTable(this.diff, ["key", "now", "after"], changes.map(({ parts, before, after }) => [parts.join("."), shown(before), shown(after)]));
    for (const row of this.diff.querySelectorAll("tbody tr")) {
      row.cells[1].className = "before";
      row.cells[2].className = "after";
    }
    document.getElementById("review-patch").textContent = `PATCH ${path}\nIf-Match: ${etag}\n\n${JSON.stringify(this.pending.patch, null, 2)}`;
    this.error.textContent = "";
    this.field.value ||= token.text;
    this.dialog.showModal();
    (this.field.value ? document.getElementById("review-send") : this.field).focus();
  }

  async send() {
    const { path, patch, etag, done } = this.pending;
    try {
      const answer = await ask(path, {
        method: "PATCH", body: JSON.stringify(patch), token: this.field.value,
        headers: { "Content-Type": "application/merge-patch+json", "If-Match": etag },
      });
      this.dialog.close();
      done(answer);
    } catch (error) {
      const stale = error instanceof Refused && error.status === 412;
      const token = error instanceof Refused && error.status === 401;
      this.error.textContent = stale ? "Somebody else changed it meanwhile: cancel, undo, and look again."
        : token ? "That is not the token of this kvd." : `Refused${error.path ? ` at ${error.path}` : ""}: ${error.message}`;
    }
  }
}

class Editor {
  constructor(id, path, review) {
    this.form = document.getElementById(`${id}-form`);
    this.fields = document.getElementById(`${id}-fields`);
    this.status = this.form.querySelector(".status");
    this.path = path;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const changes = this.changes();
      this.status.textContent = changes.length === 0 ? "Nothing is changed." : "";
      if (changes.length > 0) review.open(path, changes, this.etag, (answer) => this.done(answer));
    });
    this.form.addEventListener("reset", (event) => {
      event.preventDefault();
      this.load();
    });
  }

  async load() {
    try {
      this.take(await ask(this.path));
      this.status.textContent = "";
    } catch (error) {
      this.status.textContent = `not read: ${error.message}`;
    }
  }
  take({ body, etag }) {
    this.etag = etag;
    this.document = body;
    this.build();
  }
  done(answer) {
    this.take(answer);
    this.status.textContent = "Changed; in force from the next step on.";
  }
}

class PolicyEditor extends Editor {
  build() {
    this.before = leaves(this.document);
    this.inputs = new Map();
    this.fields.replaceChildren(...Object.keys(this.document).map((section) => {
      const keys = Object.keys(this.before).filter((path) => path.startsWith(`${section}.`));
      return make("fieldset", {}, make("legend", {}, section), ...keys.map((path) => this.field(path, path.slice(section.length + 1))));
    }));
  }

  field(path, name) {
    const value = this.before[path], schema = schemaOf(this.openapi, path);
    let input;
    if (typeof value === "boolean") {
      input = make("input", { type: "checkbox" });
      input.checked = value;
    } else if (schema?.enum) {
      input = make("select", {}, ...schema.enum.map((option) => make("option", {}, option)));
      input.value = value;
    } else {
      input = make("input", { type: "text", autocomplete: "off", inputmode: typeof value === "number" ? "decimal" : "text" });
      input.value = String(value);
    }
    this.inputs.set(path, input);
    const label = make("label", schema?.description ? { class: "word", "aria-description": schema.description } : {}, name, input);
    input.addEventListener("input", () => { label.dataset.changed = this.value(path) === value ? "no" : "yes"; });
    return label;
  }

  value(path) {
    const input = this.inputs.get(path), text = input.value.trim();
    if (input.type === "checkbox") return input.checked;
    const wasNumber = typeof this.before[path] === "number" || this.before[path] === "auto";
    return wasNumber && text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
  }

  changes() {
    return Object.keys(this.before).map((path) => ({ parts: path.split("."), before: this.before[path], after: this.value(path) }))
      .filter(({ before, after }) => before !== after);
  }
}

const GOALS = ["ttft_s", "tbt_s", "tpot_s", "gap_s"];

class SloEditor extends Editor {
  constructor(id, path, review) {
    super(id, path, review);
    document.getElementById("slo-add").addEventListener("click", () => {
      this.addRow("", this.document.classes.default ?? {}).querySelector("input").focus();
    });
  }

  build() {
    this.rows = [];
    const head = make("tr", {}, ...["class", "TTFT, s", "TBT, s", "TPOT, s", "gap, s", ""].map((title) => make("th", { scope: "col" }, word(title))));
    this.body = make("tbody");
    this.fields.replaceChildren(make("table", {}, make("thead", {}, head), this.body));
    for (const [name, goals] of Object.entries(this.document.classes)) this.addRow(name, goals);
  }

  addRow(name, goals) {
    const isNew = name === "", row = { name, removed: false, inputs: {} };
    const label = isNew ? make("input", { type: "text", "aria-label": "name of the class", placeholder: "name" }) : name;
    row.label = label;
    const cells = GOALS.map((goal) => {
      const input = make("input", { type: "text", inputmode: "decimal", "aria-label": `${goal} of ${name || "the new class"}`, autocomplete: "off" });
      input.value = goals[goal] ?? "";
      row.inputs[goal] = input;
      return make("td", {}, input);
    });
    const remove = make("button", { type: "button", class: "plain" }, "Remove");
    const element = make("tr", {}, make("td", {}, label), ...cells, make("td", {}, ...(name === "default" ? [] : [remove])));
    remove.addEventListener("click", () => {
      row.removed = true;
      element.remove();
    });
    this.rows.push(row);
    this.body.append(element);
    return element;
  }

  changes() {
    const changes = [];
    for (const row of this.rows) {
      const known = this.document.classes[row.name], name = row.name || row.label.value.trim();
      if (row.removed) {
        if (known) changes.push({ parts: ["classes", row.name], before: known, after: null });
        continue;
      }
      if (name === "") continue;
      for (const goal of GOALS) {
        const text = row.inputs[goal].value.trim(), number = Number(text);
        const after = text !== "" && Number.isFinite(number) ? number : text;
        if (known?.[goal] !== after) changes.push({ parts: ["classes", name, goal], before: known?.[goal], after });
      }
    }
    return changes;
  }
}

export class Settings {
  constructor() {
    const review = new Review();
    this.policy = new PolicyEditor("policy", "/v1/policy", review);
    this.slo = new SloEditor("slo", "/v1/slo", review);
  }
  async load() {
    this.policy.openapi = (await ask("/openapi.json").catch(() => ({}))).body;
    await Promise.all([this.policy.load(), this.slo.load()]);
  }
}
