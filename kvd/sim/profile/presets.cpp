#include "kvd/sim/profile/document.hpp"

namespace kvd::sim {
namespace {

// Bytes for KV follow from tokens x layers x bytes. OF, LK and SI are the papers of OrbitFlow,
// LayerKV and SuperInfer. A figure that none of them gives starts with "ours:".

constexpr const char* kA5000 = R"toml(name = "a5000-llama3-8b"
description = "RTX A5000 24 GB, LLaMA3-8B: OrbitFlow's main setting"
source = "OrbitFlow's published calibration of decode and link; memory from its section 5.1"
pipelined = true  # OF 4.3: the plan for the next step is made while one runs

[model]
layers = 32  # LLaMA3-8B
layers_per_block = 1  # OF: KV moves layer by layer
block_tokens = 16  # OF 3.1
token_layer_bytes = 4096  # LLaMA3-8B: 2 x 8 KV heads x 128 x 2 B

[memory]
hbm_bytes = 2147483648  # OF 5.1: 2 GB of 24 are left for KV, about 16K tokens
dram_bytes = 68719476736  # ours: 64 of the 384 GB of OF 5.1, more than its batches need

[iteration]
fitted = true  # OF calibrates a line over the batch's tokens
fixed_s = 0.0495  # OF code, profiled_results_A5000.json: 9.63e-7 T + 0.0495 s, R2 0.69
context_token_s = 9.63e-7  # the same fit
flops_per_token = 1.606e10  # LLaMA3-8B: 2 x 8.03e9 parameters
flops = 1.111e14  # RTX A5000 datasheet: FP16 tensor cores, dense
flops_efficiency = 0.54  # ours: 60 TFLOPS make prefill the small share of run time that OF 5.4 reports
attention_flops_per_pair = 524288  # LLaMA3-8B: 4 x 32 layers x 4096

[link]
h2d_bytes_s = 7.62e9  # OF code, same file: 1.72e-5 s a token of 131,072 B; the fit's constant is left out
d2h_bytes_s = 7.62e9  # ours: as h2d, PCIe 3.0 is symmetric

[engine]
max_num_seqs = 4  # OF 5.1: batch of 4
max_total_tokens = 32384  # OF 5.1: 32K tokens a batch; where the artifact's length bins end
max_model_len = 32384  # ours: as many as a batch

[solver]
node_s = 2e-5  # ours: an assumption, not measured on this profile
call_s = 2e-4  # ours: an assumption
)toml";

constexpr const char* kA6000 = R"toml(name = "a6000-llama3-70b-tp4"
description = "4 x RTX A6000 48 GB, LLaMA3-70B, TP 4: OrbitFlow's long contexts"
source = "estimated from datasheets: OrbitFlow publishes fits of this machine for LLaMA3-8B only"
pipelined = true  # OF 4.3

[model]
layers = 80  # LLaMA3-70B
layers_per_block = 2  # ours: keeps a slot of all ranks at 128 KiB and the solver's search short
block_tokens = 16  # OF 3.1
token_layer_bytes = 4096  # LLaMA3-70B: 2 x 8 KV heads x 128 x 2 B

[memory]
hbm_bytes = 26843545600  # ours: 4 x 48 GB less 141 GB of weights and 6 GB a GPU, 82K tokens
dram_bytes = 214748364800  # ours: 200 of the 256 GB of OF 5.1

[iteration]
fitted = false
fixed_s = 0.012  # ours: launches, 160 all-reduces over PCIe
weight_bytes = 1.41e11  # LLaMA3-70B at 2 B
hbm_bytes_s = 3.072e12  # RTX A6000 datasheet: 768 GB/s each
hbm_efficiency = 0.8  # ours
flops_per_token = 1.41e11  # LLaMA3-70B: 2 x 70.6e9 parameters
flops = 6.192e14  # RTX A6000 datasheet: 154.8 TFLOPS each, FP16 tensor cores, dense
flops_efficiency = 0.5  # ours
attention_flops_per_pair = 2621440  # LLaMA3-70B: 4 x 80 layers x 8192

[link]
h2d_bytes_s = 2.8e10  # OF code, profiled_results_A6000.json: 7.0 GB/s each, times four links
d2h_bytes_s = 2.8e10  # ours: as h2d

[engine]
max_num_seqs = 4  # OF 5.1
max_total_tokens = 131072  # ours: OF 5.3 takes 128K tokens a request
max_model_len = 131072  # OF 5.3 takes 128K tokens a request

[solver]
node_s = 4e-5  # ours: an assumption
call_s = 4e-4  # ours: an assumption
)toml";

constexpr const char* kL20Llama2 = R"toml(name = "l20-llama2-7b"
description = "NVIDIA L20 48 GB, Llama2-7B: LayerKV's main setting"
source = "estimated from datasheets: LayerKV publishes no calibration"
pipelined = false  # vLLM 0.5.5 schedules between iterations

[model]
layers = 32  # Llama2-7B
layers_per_block = 4  # ours: layer-wise, at slots of 1 MiB
block_tokens = 16  # vLLM 0.5.5
token_layer_bytes = 16384  # Llama2-7B: 2 x 32 heads x 128 x 2 B

[memory]
hbm_bytes = 27682406400  # ours: 0.9 x 48 GB less 13.5 GB of weights and 2 GB: 3,300 blocks of 8 MiB
dram_bytes = 549755813888  # ours: 512 of the 2,048 GB of LK 5.1

[iteration]
fixed_s = 0.006  # ours: launches and vLLM 0.5.5's scheduler
weight_bytes = 1.348e10  # Llama2-7B at 2 B
hbm_bytes_s = 8.64e11  # NVIDIA L20 datasheet
hbm_efficiency = 0.8  # ours
flops_per_token = 1.348e10  # Llama2-7B: 2 x 6.74e9 parameters
flops = 1.195e14  # NVIDIA L20 datasheet: FP16 tensor cores, dense
flops_efficiency = 0.6  # ours
attention_flops_per_pair = 524288  # Llama2-7B: 4 x 32 layers x 4096

[link]
h2d_bytes_s = 2.5e10  # ours: PCIe 4.0 x16 less overhead
d2h_bytes_s = 2.5e10  # ours: the same

[engine]
max_num_seqs = 256  # vLLM 0.5.5's default; here parked ones have a seat, too
max_model_len = 4096  # Llama2-7B
)toml";

constexpr const char* kL20Yi = R"toml(name = "l20-yi-34b-tp2"
description = "2 x NVIDIA L20 48 GB, Yi-34B-200K, TP 2 (LayerKV)"
source = "estimated from datasheets: LayerKV publishes no calibration"
pipelined = false  # vLLM 0.5.5

[model]
layers = 60  # Yi-34B
layers_per_block = 6  # ours: ten groups
block_tokens = 16  # vLLM 0.5.5
token_layer_bytes = 4096  # Yi-34B: 2 x 8 KV heads x 128 x 2 B

[memory]
hbm_bytes = 11811160064  # ours: 0.9 x 96 GB less 68.8 GB of weights and 6 GB
dram_bytes = 549755813888  # ours: 512 of the 2,048 GB of LK 5.1

[iteration]
fixed_s = 0.01  # ours: launches, scheduler, 120 all-reduces over PCIe
weight_bytes = 6.88e10  # Yi-34B at 2 B
hbm_bytes_s = 1.728e12  # NVIDIA L20 datasheet, twice
hbm_efficiency = 0.8  # ours
flops_per_token = 6.88e10  # Yi-34B: 2 x 34.4e9 parameters
flops = 2.39e14  # NVIDIA L20 datasheet, twice
flops_efficiency = 0.5  # ours: less than on one GPU, all-reduces go over PCIe
attention_flops_per_pair = 1720320  # Yi-34B: 4 x 60 layers x 7168

[link]
h2d_bytes_s = 2.5e10  # LK 5.1: two GPUs share one PCIe connection; the rate is ours
d2h_bytes_s = 2.5e10  # ours: the same

[engine]
max_num_seqs = 256  # vLLM 0.5.5's default; here parked ones have a seat, too
max_model_len = 200000  # Yi-34B-200K
)toml";

constexpr const char* kL20Llama70 = R"toml(name = "l20-llama3-70b-tp4"
description = "4 x NVIDIA L20 48 GB, Llama-3.1-70B, TP 4 (LayerKV)"
source = "estimated from datasheets: LayerKV publishes no calibration"
pipelined = false  # vLLM 0.5.5

[model]
layers = 80  # Llama-3.1-70B
layers_per_block = 8  # ours: ten groups
block_tokens = 16  # vLLM 0.5.5
token_layer_bytes = 4096  # Llama-3.1-70B: 2 x 8 KV heads x 128 x 2 B

[memory]
hbm_bytes = 20401094656  # ours: 0.9 x 192 GB less 141 GB of weights and 10 GB
dram_bytes = 549755813888  # ours: 512 of the 2,048 GB of LK 5.1

[iteration]
fixed_s = 0.015  # ours: launches, scheduler, 160 all-reduces over PCIe
weight_bytes = 1.41e11  # Llama-3.1-70B at 2 B
hbm_bytes_s = 3.456e12  # NVIDIA L20 datasheet, four times
hbm_efficiency = 0.8  # ours
flops_per_token = 1.41e11  # Llama-3.1-70B: 2 x 70.6e9 parameters
flops = 4.78e14  # NVIDIA L20 datasheet, four times
flops_efficiency = 0.45  # ours: less than on two GPUs
attention_flops_per_pair = 2621440  # Llama-3.1-70B: 4 x 80 layers x 8192

[link]
h2d_bytes_s = 5.0e10  # LK 5.1: two PCIe connections for four GPUs; the rate is ours
d2h_bytes_s = 5.0e10  # ours: the same

[engine]
max_num_seqs = 256  # vLLM 0.5.5's default; here parked ones have a seat, too
max_model_len = 131072  # Llama-3.1-70B
)toml";

constexpr const char* kGh200Qwen = R"toml(name = "gh200-qwen2.5-32b"
description = "GH200 144 GB, Qwen2.5-32B: SuperInfer's main setting"
source = "links measured by SuperInfer; memory and compute estimated, it publishes neither"
pipelined = true  # SI 4.4: schedule and swaps of t + 1 while t runs

[model]
layers = 64  # Qwen2.5-32B
layers_per_block = 4  # kvd: slots of 256 KiB, so that layers can move (SI 4.3: all 64 together)
block_tokens = 16  # SI 4.3
token_layer_bytes = 4096  # Qwen2.5-32B: 2 x 8 KV heads x 128 x 2 B; 4 MiB a block as SI 4.3 says

[memory]
hbm_bytes = 60817408000  # ours: 0.9 x 144 GB less 65.5 GB of weights and 3 GB: 14,500 blocks
dram_bytes = 429496729600  # SI 5.2: 400 GB

[iteration]
fixed_s = 0.004  # ours
weight_bytes = 6.55e10  # Qwen2.5-32B at 2 B
hbm_bytes_s = 4.9e12  # GH200 144 GB datasheet: HBM3e
hbm_efficiency = 0.8  # ours
flops_per_token = 6.5e10  # Qwen2.5-32B: 2 x 32.5e9 parameters
flops = 9.89e14  # GH200 datasheet: BF16 tensor cores, dense
flops_efficiency = 0.647  # ours: 640 TFLOPS
attention_flops_per_pair = 1310720  # Qwen2.5-32B: 4 x 64 layers x 5120

[link]
h2d_bytes_s = 2.896e11  # SI Table 1, MS+MK: 269.69 GiB/s (its times show that GB means GiB)
d2h_bytes_s = 2.566e11  # SI Table 1, MS+MK: 238.95 GiB/s
shared_bytes_s = 3.671e11  # SI Table 1, DuplexKV: 16 GiB in 46.80 ms
per_copy_s = 2e-5  # ours: one batched launch

[engine]
max_num_seqs = 16384  # SI artifact
max_batched_tokens = 16384  # SI artifact
max_model_len = 32768  # Qwen2.5-32B
)toml";

constexpr const char* kGh200Llama = R"toml(name = "gh200-llama3-8b"
description = "GH200 144 GB, LLaMA3-8B (SuperInfer)"
source = "links measured by SuperInfer; memory and compute estimated, it publishes neither"
pipelined = true  # SI 4.4

[model]
layers = 32  # LLaMA3-8B
layers_per_block = 32  # SI 4.3: block-first
block_tokens = 16  # SI 4.3
token_layer_bytes = 4096  # LLaMA3-8B: 2 x 8 KV heads x 128 x 2 B

[memory]
hbm_bytes = 110519910400  # ours: 0.9 x 144 GB less 16.1 GB of weights and 3 GB: 52,700 blocks
dram_bytes = 429496729600  # SI 5.2: 400 GB

[iteration]
fixed_s = 0.004  # ours
weight_bytes = 1.606e10  # LLaMA3-8B at 2 B
hbm_bytes_s = 4.9e12  # GH200 144 GB datasheet: HBM3e
hbm_efficiency = 0.8  # ours
flops_per_token = 1.606e10  # LLaMA3-8B: 2 x 8.03e9 parameters
flops = 9.89e14  # GH200 datasheet: BF16 tensor cores, dense
flops_efficiency = 0.647  # ours: as for Qwen2.5-32B
attention_flops_per_pair = 524288  # LLaMA3-8B: 4 x 32 layers x 4096

[link]
h2d_bytes_s = 2.896e11  # SI Table 1, MS+MK: 269.69 GiB/s (its times show that GB means GiB)
d2h_bytes_s = 2.566e11  # SI Table 1, MS+MK: 238.95 GiB/s
shared_bytes_s = 3.671e11  # SI Table 1, DuplexKV: 16 GiB in 46.80 ms
per_copy_s = 2e-5  # ours: one batched launch

[engine]
max_num_seqs = 16384  # SI artifact
max_batched_tokens = 16384  # SI artifact
max_model_len = 131072  # ours: of Llama-3.1-8B, which has the same shape
)toml";

constexpr const char* kGh200Mixtral = R"toml(name = "gh200-mixtral-8x7b"
description = "GH200 144 GB, Mixtral-8x7B (SuperInfer)"
source = "links measured by SuperInfer; memory and compute estimated, it publishes neither"
pipelined = true  # SI 4.4

[model]
layers = 32  # Mixtral-8x7B
layers_per_block = 32  # SI 4.3: block-first
block_tokens = 16  # SI 4.3
token_layer_bytes = 4096  # Mixtral-8x7B: 2 x 8 KV heads x 128 x 2 B

[memory]
hbm_bytes = 33218887680  # ours: 0.9 x 144 GB less 93.4 GB of weights and 3 GB: 15,840 blocks
dram_bytes = 429496729600  # SI 5.2: 400 GB

[iteration]
fixed_s = 0.005  # ours: routing besides
weight_bytes = 9.34e10  # Mixtral-8x7B at 2 B: a batch wakes all experts
hbm_bytes_s = 4.9e12  # GH200 144 GB datasheet: HBM3e
hbm_efficiency = 0.8  # ours
flops_per_token = 2.58e10  # Mixtral-8x7B: 2 x 12.9e9 active parameters
flops = 9.89e14  # GH200 datasheet: BF16 tensor cores, dense
flops_efficiency = 0.5  # ours: grouped products of the experts reach less
attention_flops_per_pair = 524288  # Mixtral-8x7B: 4 x 32 layers x 4096

[link]
h2d_bytes_s = 2.896e11  # SI Table 1, MS+MK: 269.69 GiB/s (its times show that GB means GiB)
d2h_bytes_s = 2.566e11  # SI Table 1, MS+MK: 238.95 GiB/s
shared_bytes_s = 3.671e11  # SI Table 1, DuplexKV: 16 GiB in 46.80 ms
per_copy_s = 2e-5  # ours: one batched launch

[engine]
max_num_seqs = 16384  # SI artifact
max_batched_tokens = 16384  # SI artifact
max_model_len = 32768  # Mixtral-8x7B
)toml";

constexpr const char* kH100 = R"toml(name = "h100-pcie-llama3-8b"
description = "H100 PCIe 80 GB, LLaMA3-8B: a common server"
source = "estimated from datasheets"
pipelined = true  # ours: kvd's engines ask for the next step while one runs

[model]
layers = 32  # LLaMA3-8B
layers_per_block = 32  # ours: block-first, as kvd's default for rotation
block_tokens = 16  # vLLM default
token_layer_bytes = 4096  # LLaMA3-8B: 2 x 8 KV heads x 128 x 2 B

[memory]
hbm_bytes = 52935262208  # ours: 0.9 x 80 GB less 16.1 GB of weights and 3 GB
dram_bytes = 274877906944  # ours: 256 GB

[iteration]
fixed_s = 0.004  # ours
weight_bytes = 1.606e10  # LLaMA3-8B at 2 B
hbm_bytes_s = 2.0e12  # H100 PCIe datasheet
hbm_efficiency = 0.8  # ours
flops_per_token = 1.606e10  # LLaMA3-8B: 2 x 8.03e9 parameters
flops = 7.56e14  # H100 PCIe datasheet: BF16 tensor cores, dense
flops_efficiency = 0.6  # ours
attention_flops_per_pair = 524288  # LLaMA3-8B: 4 x 32 layers x 4096

[link]
h2d_bytes_s = 5.0e10  # ours: PCIe 5.0 x16 less overhead
d2h_bytes_s = 5.0e10  # ours: the same
per_copy_s = 1e-5  # ours: one batched launch

[engine]
max_num_seqs = 256  # vLLM default
max_batched_tokens = 8192  # vLLM default
max_model_len = 131072  # ours: of Llama-3.1-8B, which has the same shape
)toml";

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> kPresets = {
      {"a5000-llama3-8b", kA5000},         {"a6000-llama3-70b-tp4", kA6000},
      {"l20-llama2-7b", kL20Llama2},       {"l20-yi-34b-tp2", kL20Yi},
      {"l20-llama3-70b-tp4", kL20Llama70}, {"gh200-qwen2.5-32b", kGh200Qwen},
      {"gh200-llama3-8b", kGh200Llama},    {"gh200-mixtral-8x7b", kGh200Mixtral},
      {"h100-pcie-llama3-8b", kH100}};
  return kPresets;
}

}  // namespace kvd::sim
