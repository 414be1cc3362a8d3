// Tells who waits because of whom, what is cached, what each domain may have, who is out of service, and how kvd is configured.
import { ask } from "./feed.js";
import { bytesText, countText, secondsText } from "./draw.js";
import { fillTable } from "./tables.js";

const at = (id) => document.getElementById(id);

export function showCache({ cache }) {
  const { hbm, dram, disk } = cache.cached_bytes;
  at("cache-text").textContent = `${bytesText(hbm)} in HBM, ${bytesText(dram)} in DRAM, ${bytesText(disk)} on disk; `
    + `${countText(cache.found_tokens.hbm + cache.found_tokens.dram)} of ${countText(cache.prompt_tokens)} prompt tokens found`;
  fillTable(at("cache-table"), ["engine", "domain", "model", "#block", "#tokens of it"],
    cache.open.map((one) => [`${one.engine} ${one.name}`, one.domain, one.model, bytesText(one.block_bytes), one.block_tokens]), "no engine has opened the cache");
}

function showQuotas({ domains }) {
  const cells = ({ guarantee_bytes: least, maximum_bytes: most, over_bytes: over }) =>
    [bytesText(least), most === null ? "–" : bytesText(most), over > 0 ? bytesText(over) : "–"];
  const titles = (tier) => [`#${tier} guaranteed`, "#at most", "#over it"];
  fillTable(at("quota-table"), ["domain", "each user", ...titles("HBM"), ...titles("DRAM")],
    Object.entries(domains).map(([name, one]) => [name, one.per_user ? "yes" : "no", ...cells(one.hbm), ...cells(one.dram)]), "no domain");
}

function showDrain({ node, engines }) {
  const all = [...(node ? [["node", node]] : []), ...Object.entries(engines).map(([id, one]) => [`${id} ${one.name}`, one])];
  fillTable(at("drain-table"), ["who", "state", "#left", "#since", "#ends in"],
    all.map(([who, one]) => [who, one.state, one.left, secondsText(one.since_s), one.deadline_s === null ? "–" : secondsText(one.deadline_s)]), "everything is in service");
}

function showLoad({ findings }) {
  fillTable(at("load-table"), ["~who waits, because of whom", "~what to turn"],
    findings.map(({ text, remedy }) => [text, remedy]), "no request waits past its goal");
}

async function showConfig() {
  const [config, origins] = await Promise.all([ask("/v1/config"), ask("/v1/config/origins")]);
  fillTable(at("config-table"), ["key", "~value", "set by"],
    Object.entries(config.body).map(([key, value]) => [key, value, origins.body.origins[key] ?? "–"]));
}

/** Reads what the overview lacks. kvd's silence is reported elsewhere. */
export async function showService() {
  const [load, quotas, drain] = await Promise.all(["load", "quotas", "drain"].map((name) => ask(`/v1/${name}`)));
  showLoad(load.body);
  showQuotas(quotas.body);
  showDrain(drain.body);
  if (at("config").open) await showConfig();
}
at("config").addEventListener("toggle", () => showService().catch(() => {}));
