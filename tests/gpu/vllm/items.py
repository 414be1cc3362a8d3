"""The table: what is asked of a GPU, in the order of what the answers are worth."""

from __future__ import annotations

import json
import time
from typing import Any

import kvd_random
from bench import HERE, Bench, scribble
from quarter import Item, Results

NO_GPU = "no GPU"
LOGPROB_NOISE = 0.02  # two runs of one engine may be equal to the bit; bfloat16 sums in another order are not
HBM_BYTES = 24 << 30


def needs_gpu(bench: Bench) -> str:
    return "" if bench.gpu else NO_GPU


def share(values: list[float], part: float) -> float:
    """The value below which that part of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def same(a: dict[str, Any], b: dict[str, Any]) -> tuple[int, int]:
    """How many tokens are the same, of how many."""
    pairs = [(x, y) for one, other in zip(a["tokens"], b["tokens"]) for x, y in zip(one, other)]
    return sum(x == y for x, y in pairs), len(pairs)


def spread(a: dict[str, Any], b: dict[str, Any]) -> float:
    """The largest difference of log probabilities, as long as the tokens are the same."""
    worst = 0.0
    rows = zip(a["tokens"], b["tokens"], a["logprobs"], b["logprobs"])
    for one, other, left, right in rows:
        for x, y, p, q in zip(one, other, left, right):
            if x != y:
                break
            worst = max(worst, abs(p - q))
    return worst


def times(result: dict[str, Any]) -> dict[str, Any]:
    """In ms."""
    first, gaps = result["first_s"], result["gaps_s"]
    tokens = sum(map(len, result["tokens"]))
    return {
        "TTFT p50": round(1e3 * share(first, 0.5), 2), "TTFT p99": round(1e3 * share(first, 0.99), 2),
        "TPOT p50": round(1e3 * share(gaps, 0.5), 3), "TPOT p99": round(1e3 * share(gaps, 0.99), 3),
        "longest gap": round(1e3 * max(gaps, default=0.0), 1),
        "tokens/s": round(tokens / result["seconds"], 1), "seconds": round(result["seconds"], 2),
        "computed": result["scheduled"], "needed": result["needed"],
    }  # fmt: skip


def start_engines(bench: Bench) -> None:
    """The engines that several items work with, side by side. kvd first: what it takes is not free any more."""
    kvd = bench.kvd()
    bench.start("stock")
    bench.start_on_kvd("kvd", kvd)
    bench.start_on_kvd("kvd-later", kvd)


def ready(bench: Bench, results: Results) -> None:
    bench.kvd()
    results.check("ready", True, "its socket is there")
    start_engines(bench)
    began = time.monotonic()
    for name in ("stock", "kvd", "kvd-later"):
        bench.ready(name)
    results.check("engines", True, f"all after {time.monotonic() - began:.0f} s")


EXPERIMENTS = {
    "X1": "two streams a direction as they are: .78 to .82 of the duplex limit",
    "X3": "a gate between bursts: .95 of the limit, copies of 256 KiB wait less than 110 us (p99) at 100 us",
    "X4": "the size of an engine's copy from which on it waits for a time slice",
    "X5": "huge pages, and copies in the order of their addresses",
    "X6": "small batches: without an order between them 1.5 times the rate",
    "X7": "one strided copy a block, 1.9 GiB from layer to layer: 52 GB/s",
}


def experiments(bench: Bench, results: Results) -> None:
    found = bench.experiments(",".join(EXPERIMENTS), 55, bench.work / "experiments")
    for key in EXPERIMENTS:
        each = found[key]
        figures = {figure["name"]: figure["value"] for figure in each["figures"]}
        results.figure(key, figures)
        if each["status"] == "skipped":
            results.leave(key, each["reason"] or "left out")
        else:
            results.check(key, each["status"] in ("passed", "recorded"), each["reason"])


def first_light(bench: Bench, results: Results) -> None:
    start_engines(bench)
    load = bench.sizes.first
    stock, kvd = bench.ready("stock"), bench.ready("kvd")
    once = stock.play(load)
    stock.reset()
    again = stock.play(load)
    kvd.play(load._replace(seed=load.seed + 50))  # once for what the first request of a process costs
    ours = kvd.play(load)
    alike, count = same(once, ours)
    usual, _ = same(once, again)
    results.check("tokens", alike >= usual, f"{alike} of {count}; stock with itself {usual}")
    most, noise = spread(once, ours), spread(once, again)
    results.check("logprobs", most <= max(noise, LOGPROB_NOISE), f"{most:.4f}; stock with itself {noise:.4f}")
    held = bench.region_bytes(bench.kvd(), "kvd")
    results.check("region", held >= bench.sizes.kv_bytes * 0.9, f"{held} bytes")
    results.figure("stock", times(again))
    results.figure("kvd", times(ours))
    decode = {name: times(bench.ready(name).play(bench.sizes.decode)) for name in ("stock", "kvd")}
    for name, found in decode.items():
        results.figure(f"{name}, decode", found)
    pace = decode["kvd"]["TPOT p50"] / decode["stock"]["TPOT p50"]
    if bench.gpu:
        results.check("pace", pace <= 1.05, f"{pace:.3f}")
    else:
        results.leave("pace", f"{NO_GPU}; here {pace:.3f}")


def warm(bench: Bench, results: Results) -> None:
    start_engines(bench)
    load = bench.sizes.prefix
    before, after, stock = bench.ready("kvd"), bench.ready("kvd-later"), bench.ready("stock")
    alone = stock.play(load)
    # Computed again from here on is what kvd's engine computes, in batches of the same sizes.
    own = stock.play(load)
    cold = before.play(load)
    bench.end_engine("kvd")
    # Once for what the first request of a process costs, with other tokens.
    after.play(load._replace(seed=load.seed + 50, shared=0))
    found = after.play(load)
    hits = int(found["counters"].get("external_prefix_cache_hits", 0))
    block = bench.sizes.engine.get("block_size", 16)
    results.check("hits", hits >= load.shared // block * block, f"{hits} of {load.shared} tokens")
    ratio = found["first_s"][0] / cold["first_s"][0]
    size = hits * kvd_random.token_bytes(kvd_random.SHAPES[bench.sizes.model])
    longer = found["first_s"][0] - own["first_s"][0]
    for name, each in (("stock", alone), ("stock, its own cache", own), ("cold", cold), ("warm", found)):
        results.figure(name, times(each))
    results.figure("loaded", {"bytes": size, "GB/s beyond stock's own hit": round(size / longer / 1e9, 1)})
    if bench.gpu:
        results.check("time", ratio < 0.3, f"{ratio:.2f} of {cold['first_s'][0] * 1e3:.0f} ms")
    else:
        results.leave("time", f"{NO_GPU}; here {ratio:.2f}")
    usual, count = same(alone, own)
    alike, _ = same(own, found)
    after.reset()
    places = scribble(bench.kvd())
    other = after.play(load)
    changed, _ = same(found, other)
    results.check("bytes", alike == count and changed < count,
                  f"{alike} of {count} tokens as stock's own hit, of which {usual} as computed; {changed} after "
                  f"{places} places were overwritten")  # fmt: skip
    after.scale(1.01)
    after.reset()
    anew = after.play(load)
    stale = int(anew["counters"].get("external_prefix_cache_hits", 0))
    results.check("weights", stale == 0, f"{stale} tokens found")


def pressure(bench: Bench, results: Results) -> None:
    start_engines(bench)
    others = {"stock": {}, **({} if not bench.gpu else {
        "offloading": {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": HBM_BYTES}},
        "simple": {"kv_connector": "SimpleCPUOffloadConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": HBM_BYTES}},
    })}  # fmt: skip
    for name, transfer in others.items():
        if transfer:
            bench.start(name, kv_transfer_config={**transfer, "kv_role": "kv_both"})
    load, rates = bench.sizes.pressure, {}
    kvd = bench.ready("kvd-later").play(load)
    results.figure("kvd", times(kvd))
    results.check("computed", kvd["scheduled"] == kvd["needed"], f"{kvd['scheduled']} of {kvd['needed']} tokens")
    parked = int(kvd["counters"].get("kvd_parked_requests", 0))
    results.check("parked", parked > 0, f"{parked} requests")
    for name in others:
        try:
            other = times(bench.ready(name).play(load))
        except RuntimeError as error:  # the rest can be compared all the same
            other = {"tokens/s": 0.0, "fault": str(error)}
        results.figure(name, other)
        rates[name] = other["tokens/s"]
    ours, best = times(kvd)["tokens/s"], max(rates.values())
    if bench.gpu:
        results.check("rate", ours >= best, f"{ours} tokens/s, the best of the others {best}")
    else:
        results.leave("rate", f"{NO_GPU}; here {ours}, stock {best}")


def layout(bench: Bench, results: Results) -> None:
    kvd = bench.kvd()
    default = {"VLLM_KV_CACHE_LAYOUT": "LBNHC"}
    block_first = {"VLLM_KV_CACHE_LAYOUT": "BLNHC"}
    bench.end_engine("offloading")
    bench.end_engine("simple")
    bench.start("stock-block-first", block_first)
    bench.start_on_kvd("kvd-layer-first", kvd, environment=default)
    bench.start_on_kvd("kvd-block-first", kvd, environment=block_first)
    decode, long = bench.sizes.decode, bench.sizes.long_prefix
    bench.start("stock", default)
    usual = times(bench.ready("stock").play(decode))["TPOT p50"]
    ours = times(bench.ready("stock-block-first").play(decode))["TPOT p50"]
    results.check("decode", ours <= 1.02 * usual, f"{ours} ms, layers first {usual}")
    size = long.shared * kvd_random.token_bytes(kvd_random.SHAPES[bench.sizes.model])
    for name in ("kvd-layer-first", "kvd-block-first"):
        engine = bench.ready(name)
        engine.play(long)
        engine.reset()
        first = engine.play(long)["first_s"][0]
        results.figure(name, {"bytes": size, "TTFT ms": round(first * 1e3, 2), "GB/s": round(size / first / 1e9, 1)})
    rate = results.figures["kvd-block-first"]["GB/s"]
    results.check("loads", rate >= 45, f"{rate} GB/s over the whole time to the first token")
    for name in ("stock-block-first", "kvd-layer-first", "kvd-block-first"):
        bench.end_engine(name)


def neighbour(bench: Bench, results: Results) -> None:
    bench.start("stock")
    engine, load = bench.ready("stock"), bench.sizes.decode
    engine.play(load)
    alone = times(engine.play(load))["TPOT p99"]
    with bench.traffic(20):
        beside = times(engine.play(load))["TPOT p99"]
    results.figure("TPOT p99 ms", {"alone": alone, "beside copies": beside})
    results.check("pace", beside <= 1.05 * alone, f"{beside} ms, alone {alone}")


def elastic(bench: Bench, results: Results) -> None:
    bench.end_engines()
    kvd = bench.kvd("kvd-elastic", slab="2MiB", hbm="8GiB", dram="4GiB")
    bench.start_on_kvd("elastic", kvd, {"elastic": True})
    bench.start("stock")
    load, engine = bench.sizes.first, bench.ready("elastic")
    engine.play(load._replace(seed=load.seed + 50))  # memory comes while it grows, so its batches differ
    results.check("starts", True, "it answers")
    alike, count = same(bench.ready("stock").play(load), engine.play(load))
    results.check("tokens", alike == count, f"{alike} of {count}")
    bench.end_engine("elastic")


def open_tests(bench: Bench, results: Results) -> None:
    status = bench.run("run.sh", ["sh", str(HERE.parent / "run.sh"), "--open", str(bench.bin.parent)], 58)
    results.check("tests", status == 0, f"exit {status}")


def compiled(bench: Bench, results: Results) -> None:
    bench.end_engines()
    bench.start("stock-compiled", compilation_config={})
    bench.start_on_kvd("kvd-compiled", bench.kvd(), compilation_config={})
    stock = bench.ready("stock-compiled").play(bench.sizes.first)
    ours = bench.ready("kvd-compiled").play(bench.sizes.first)
    results.check("starts", True, "both answer")
    alike, count = same(stock, ours)
    results.check("tokens", alike == count, f"{alike} of {count}")


def doctor(bench: Bench, results: Results) -> None:
    said = bench.doctor(bench.kvd())
    faults = [
        f"{each['what']}: {each['fault']}"
        for each in said["findings"]
        if each["fault"] and not each["what"].startswith("vllm ") and not each["fault"].startswith("not tried")
    ]
    results.check("doctor", not faults, "; ".join(faults) or "all yes")


def streamed(bench: Bench, results: Results) -> None:
    bench.end_engines()
    given, shape = bench.sizes, kvd_random.SHAPES[bench.sizes.model]
    block = given.engine.get("block_size", 128)
    files = {name: bench.work / f"{name}.json" for name in ("streamed", "left-out")}
    transfers: dict[str, Any] = {"stock-eager": None}
    for name, file in files.items():
        extra = {"staging": given.staging, "statistics": str(file), "leave_out": name == "left-out"}
        transfers[name] = {"kv_connector": "LayerConnector", "kv_connector_module_path": "layers",
                           "kv_role": "kv_both", "kv_connector_extra_config": extra}  # fmt: skip
    for name, transfer in transfers.items():
        bench.start(
            name, block_size=block, enforce_eager=True,  # no hook runs in a graph
            compilation_config={"mode": 0, "cudagraph_mode": "NONE"}, kv_transfer_config=transfer,
            kv_cache_memory_bytes=given.kv_bytes + given.staging * block * kvd_random.token_bytes(shape),
        )  # fmt: skip
    loads = (given.first, given.streamed)
    stock, ours = bench.ready("stock-eager"), bench.ready("streamed")
    once = [stock.play(load) for load in loads]
    stock.reset()
    usual = [stock.play(load) for load in loads]
    ours.play(given.first._replace(seed=50))  # once for what the first request of a process costs
    found, told = [], [json.loads(files["streamed"].read_text())]
    for load in loads:
        found.append(ours.play(load))
        told.append(json.loads(files["streamed"].read_text()))
    for which, theirs, mine, before, after in zip(("first", "long"), usual, found, told, told[1:]):
        results.figure(f"{which}, stock", times(theirs))
        results.figure(f"{which}, streamed", times(mine))
        counted = {name: after[name] - before[name] for name in after if name != "most_staging"}
        results.figure(f"{which}, streamed, counted", counted)
    results.figure("log probabilities, at most apart", [spread(theirs, mine) for theirs, mine in zip(once, found)])
    results.figure("most staging", f"{told[-1]['most_staging']} of {given.staging} blocks")
    fetched, seconds = told[2]["decode_bytes"] - told[1]["decode_bytes"], sum(found[1]["gaps_s"])
    results.figure("long, while decoding", {"bytes": fetched, "GB/s": round(fetched / seconds / 1e9, 2)})
    alike = [same(theirs, mine) for theirs, mine in zip(once, found)]
    noise = [same(theirs, again)[0] for theirs, again in zip(once, usual)]
    said = [f"{got} of {count}, stock with itself {least}" for (got, count), least in zip(alike, noise)]
    equal = all(got >= least for (got, _), least in zip(alike, noise))
    results.check("tokens", fetched > 0 and equal, "; ".join(said))
    wrong, count = same(found[1], bench.ready("left-out").play(given.streamed))
    results.check("seen", wrong < count, f"{wrong} of {count} tokens with one block of one layer left out")
    bench.end_engines()


def no_experiments(bench: Bench) -> str:
    if not bench.gpu:
        return NO_GPU
    return "" if (bench.bin / "kvd-gpu-report").exists() else "kvd was built without nvcc"


TABLE: list[Item[Bench]] = [
    Item("V0", "kvd and three vLLMs", 150, {
        "ready": "kvd is ready", "engines": "two of them start on kvd's memory"}, ready, needed=True),
    Item("X", "kvd's copies by themselves", 60, EXPERIMENTS, experiments, no_experiments),
    Item("V1", "first light", 90, {
        "tokens": "16 prompts: the same tokens as stock",
        "logprobs": "log probabilities within stock's own spread between two runs",
        "region": "kvdctl shows the KV cache",
        "pace": "TPOT at most 1.05 of stock's"}, first_light, needed=True),
    Item("V2", "warm, in another process", 45, {
        "hits": "the whole shared prefix is found in kvd", "time": "TTFT below .3 of cold",
        "bytes": "stock's answer from its own cache, and another one once kvd's DRAM was overwritten",
        "weights": "once weights were changed in place nothing of before is found"}, warm),
    Item("V3", "pressure", 150, {
        "computed": "kvd computes no token twice", "parked": "requests were parked",
        "rate": "tokens/s at least the best of stock and vLLM's own offloading"}, pressure),
    Item("V4", "layout", 60, {
        "decode": "stock decodes with blocks first within 2 % of layers first",
        "loads": "blocks first: loads at 45 GB/s"}, layout, needs_gpu),
    Item("V5", "neighbour", 45, {
        "pace": "TPOT p99 beside kvd's copies at full rate at most 5 % longer"}, neighbour, needs_gpu),
    Item("V6", "elastic on model runner V2", 75, {
        "starts": "it starts and answers", "tokens": "the same tokens as stock"}, elastic, needs_gpu),
    Item("V7", "streamed layers", 75, {
        "tokens": "half the layers streamed: the same tokens as stock",
        "seen": "one block left out: another answer"}, streamed),
    Item("S", "test programs that no GPU has run, two engines", 60, {
        "tests": "all pass"}, open_tests, needs_gpu),
    Item("C", "torch.compile and piecewise graphs", 90, {
        "starts": "stock and kvd start and answer", "tokens": "the same tokens"}, compiled, needs_gpu),
    Item("D", "doctor", 60, {
        "doctor": "doctor says yes to all but the tested version"}, doctor, needs_gpu),  # elsewhere it has a test
]  # fmt: skip

