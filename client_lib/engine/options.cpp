#include "client_lib/engine/options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <thread>

#include "ipc/vocabulary/command_line.hpp"

namespace kvd::engine {
namespace {

constexpr const char* kAbout =
    "kvd-engine runs a LLaMA-shaped model on the CPU, keeps its KV cache in kvd's pool, and serves "
    "OpenAI's /v1/completions and /v1/chat/completions on 127.0.0.1. kvd decides which requests "
    "run and which rotate out; "
    "the tokens are the same, bit for bit, whatever it decides.";

constexpr const char* kMore = R"(
Examples:
  kvd-engine --random layers=4,hidden=256,heads=8,kv_heads=4
  kvd-engine --model tinyllama-f16.gguf --port 8480
  curl -N 127.0.0.1:8480/v1/completions --json '{"prompt": "hello", "max_tokens": 32, "stream": true}'

Models:
  --model reads GGUF files of the architecture "llama" with F32, F16 or BF16 tensors.
  --random makes one: layers, hidden, heads, kv_heads, head_dim, ff, vocab, context, seed.
  That model is made up: its answers are words that mean nothing, one phrase a token.
  A model without a vocabulary takes text as bytes; one with a vocabulary takes and makes token ids.

Requests (POST /v1/completions):
  prompt            text, or an array of token ids
  max_tokens        16 if left out
  stop              a text or up to 4; stop_token_ids, ignore_eos
  stream            server-sent events; stream_options.include_usage
  kvd_ttft_s        SLO: seconds to the first token
  kvd_tbt_s         SLO: seconds between tokens; they reach the client at this pace, and what was
                    made early hides the pauses in which another request runs
  kvd_gap_s         SLO: seconds without a token at most, after the first
  cache_salt        a text; only requests with the same one use each other's computed prompts
                    (usage.prompt_tokens_details.cached_tokens says how much of a prompt was found)
  kvd_digest        adds a 64-bit digest of the logits to each token, to compare runs with
  POST /v1/chat/completions takes messages of text in place of the prompt, and max_completion_tokens
  (256 if left out). They become lines "ROLE: TEXT".
  Decoding is greedy; temperature and the like must be left out or have the value that says so.
  Answers: 400 for a bad request, 404 for another model, 429 when --max-requests are open, 503 while
  kvd is away for longer than --kvd-away. GET /v1/models, GET /health.

KV events (--kv-events), in the form of vLLM 0.32's ZMQ publisher:
  where blocks of this model are that routers may send prompts to: GPU (kvd's HBM), CPU (its DRAM),
  STORAGE (its disk); also what other engines of the user with this option have computed. Never of
  requests with a cache_salt. Nothing is encrypted: whoever connects reads the tokens of prompts.

Exit status: 0 after SIGTERM or SIGINT, 1 when it cannot serve, 2 for a mistake on the command line.
When kvd dies, requests wait for the next one, are computed again and go on where their users are.)";

/// The options that have no type of their own on the command line.
struct Plain {
  events::Publisher::Config events;
  double ttft_s = 0;
  double tbt_s = 0;
  double away_s = 60;
  double iteration_ms = 0;
  std::string pipeline = "on";
};

void describe(CLI::App& app, Options& options, Plain& plain) {
  auto* model =
      app.add_option("--model", options.model_file, "GGUF file")->check(CLI::ExistingFile);
  auto* random = app.add_option("--random", options.random_model,
                                "make a model of random weights, e.g. layers=4,hidden=256,seed=7");
  model->excludes(random);
  app.add_option("--name", options.model_name, "the model's name in the API (default: its own)");
  app.add_option("--port", options.port, "port on 127.0.0.1 (default 8480)")
      ->check(CLI::Range(1, 65535));
  app.add_option("--threads", options.threads, "CPU threads (default: one a CPU, but for one)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--max-requests", options.scheduler.max_open,
                 "open requests; more get 429 (default 64)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--ttft-slo", plain.ttft_s, "seconds, for requests without kvd_ttft_s")
      ->check(within(0.0, 3600.0));
  app.add_option("--tbt-slo", plain.tbt_s, "seconds, for requests without kvd_tbt_s")
      ->check(within(0.0, 3600.0));
  app.add_option("--endpoint", options.memory.endpoint,
                 "attach socket of kvd (default: $KVD_ENDPOINT, else the system's)");
  app.add_option("--engine-name", options.memory.name, "name shown by kvdctl");
  app.add_option("--layers-per-block", options.memory.layers_per_block,
                 "layers that move together (default: kvd chooses)");
  app.add_option("--block-tokens", options.memory.block_tokens,
                 "tokens of a block (default: kvd chooses)");
  app.add_option("--kvd-away", plain.away_s,
                 "seconds that requests wait for a kvd that went away (default 60)")
      ->check(within(0.0, 86400.0));
  app.add_option("--pipeline", plain.pipeline,
                 "on (default): agree upon the next iteration while one computes; off: in turn")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--iteration-ms", plain.iteration_ms,
                 "what an iteration takes at least; as on a GPU, where many requests take hardly "
                 "longer than one (default 0: as long as the CPU needs)")
      ->check(within(0.0, 1000.0));
  auto* own = app.add_flag("--no-kvd", options.no_kvd,
                           "keep KV in this process's own memory: what runs on kvd compare with");
  app.add_option("--chunk", options.chunk, "with --no-kvd: prompt tokens an iteration takes")
      ->needs(own);
  auto* events = app.add_option("--kv-events", plain.events.endpoint,
                                "publish KV events for routers, as vLLM does, at "
                                "tcp://127.0.0.1:PORT or ipc://PATH")
                     ->excludes(own);
  app.add_option("--kv-events-replay", plain.events.replay,
                 "where routers ask for what they have missed, likewise")
      ->needs(events);
  app.add_option("--kv-events-topic", plain.events.topic, "topic of the events (default: none)")
      ->needs(events);
  app.footer(kMore);
}

Nanoseconds seconds(double count) { return Nanoseconds(std::llround(count * 1e9)); }

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int& status) {
  Options options;
  Plain plain;
  CLI::App app(kAbout, "kvd-engine");
  options.memory.name = "kvd-engine";
  app.set_version_flag("-V,--version", "kvd-engine " KVD_VERSION, "print the version and exit");
  describe(app, options, plain);
  auto ended = parse_command_line(app, argc, argv);
  if (!ended && options.model_file.empty() && options.random_model.empty()) {
    app.exit(CLI::RequiredError("--model FILE or --random SHAPE"));
    ended = 2;
  }
  if (ended) {
    status = *ended;
    return std::nullopt;
  }
  options.scheduler.ttft_slo = seconds(plain.ttft_s);
  options.scheduler.tbt_slo = seconds(plain.tbt_s);
  options.scheduler.away_limit = seconds(plain.away_s);
  options.scheduler.least_iteration = seconds(plain.iteration_ms / 1000);
  options.scheduler.pipeline = plain.pipeline == "on";
  if (!plain.events.endpoint.empty()) options.memory.events = plain.events;
  if (options.threads == 0) options.threads = std::max(2U, std::thread::hardware_concurrency()) - 1;
  return options;
}

}  // namespace kvd::engine
