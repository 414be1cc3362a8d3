/* kvd.h: the C interface of the kvd client library.
 *
 * A process opens one handle, and through it either rents memory (level 1: regions) or lets kvd
 * schedule its requests (level 3: submit and step). Every call has a deadline and returns a
 * kvd_status; kvd_last_error() gives the sentence. Structs start with their size in bytes, so that
 * they can grow without breaking a program compiled earlier.
 *
 * Threads: a handle may be used from several threads; calls are serialised inside.
 * Fork: the handle is dead in a forked child (KVD_PEER_GONE) and its mappings are absent there.
 */
#ifndef KVD_H
#define KVD_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVD_API __attribute__((visibility("default")))
#else
#define KVD_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvd_status {
  KVD_OK = 0,
  KVD_OUT_OF_MEMORY = 1,
  KVD_WOULD_BLOCK = 2,
  KVD_NOT_FOUND = 3,
  KVD_STALE_SESSION = 4,
  KVD_INVALID_ARGUMENT = 5,
  KVD_INFEASIBLE = 6,
  KVD_DEADLINE_EXCEEDED = 7,
  KVD_PEER_GONE = 8,
  KVD_DEVICE_ERROR = 9,
  KVD_UNSUPPORTED = 10,
  KVD_UNAVAILABLE = 11,
  KVD_PERMISSION_DENIED = 12,
  KVD_QUOTA_EXCEEDED = 13,
  KVD_INTERNAL = 14,
  KVD_DRAINING = 15 /* the engine is out of service (kvdctl drain): send the request elsewhere */
} kvd_status;

typedef struct kvd_handle kvd_handle;

/* The kind of memory that a kvd lends. Host memory: addresses are pointers. CUDA memory: addresses
 * are device pointers of one GPU, for its kernels and copies; the CPU must not follow them. Used as
 * bits in kvd_open_options. */
#define KVD_MEMORY_HOST 1u
#define KVD_MEMORY_CUDA 2u
/* For kvd_open_options, alone: the program maps no memory, whatever kind kvd lends. It may look up,
 * drop and schedule. No GPU is looked for, so none of its memory goes to a context of this program.
 * What maps memory fails with KVD_INVALID_ARGUMENT. */
#define KVD_MEMORY_UNMAPPED 4u

/* What carries the commands. A ring in shared memory saves a few microseconds for each command. */
#define KVD_TRANSPORT_ZMQ 0u
#define KVD_TRANSPORT_RING 1u

/* What the program can do. Layers of its requests stream only if it calls kvd_wait_layer before and
 * kvd_layer_done after each layer group of an iteration with a streamed request. */
#define KVD_STREAMS_LAYERS 1u

/* How to reach the daemon and who is asking. Zero-initialise, set struct_size, fill what you need.
 */
typedef struct kvd_open_options {
  size_t struct_size;
  const char* endpoint;    /* attach socket; NULL: $KVD_ENDPOINT, else the default path */
  const char* engine_name; /* shown in status and metrics, at most 31 bytes; NULL: program name */
  /* Model class. layers = 0: level 1 only (regions), no block class. */
  uint32_t layers;
  uint32_t layers_per_block;          /* 0: the smallest that makes a slot >= 256 KiB */
  uint32_t block_tokens;              /* 0: 16 */
  uint64_t bytes_per_token_per_layer; /* K and V together */
  uint64_t timeout_ns;                /* for the attach; 0: 5 s */
  /* KVD_MEMORY_… bits that the program can use; 0: KVD_MEMORY_HOST. A kvd that lends another kind,
   * or memory of a GPU this process does not see, refuses with KVD_UNSUPPORTED and the remedy. */
  uint32_t memory;
  uint32_t transport; /* KVD_TRANSPORT_… */
  uint32_t abilities; /* KVD_STREAMS_LAYERS or 0 */
  /* One process of several that split a model's heads. There are `ranks` > 0 of them. All name the
   * same `group`, a number that they agreed on (not 0), and the same shape, that of one rank's
   * share. kvd takes them as one engine: every rank calls kvd_step and gets the same run list; any
   * one of them submits, finishes and aborts for all. */
  uint32_t ranks; /* 0: no group */
  uint64_t group;
  uint32_t rank; /* from 0 */
  /* Which of kvd's devices lends the memory, in the order of kvd's [[device]] tables. Ranks of a
   * group may name the same device or different ones. KVD_INVALID_ARGUMENT where kvd has none of
   * this number.
   */
  uint32_t device;
  /* All that the bytes of a block depend on beside its tokens and the shape: weights by their
   * content (no path, name or time), number format, layout, version. Requests of sessions whose
   * models differ never find each other's blocks. NULL or empty: kvd_request.tokens is not passed
   * on, and nothing is found. */
  const char* model;
} kvd_open_options;

KVD_API kvd_status kvd_open(const kvd_open_options* options, kvd_handle** handle);
/* Returns everything the session holds to the daemon and frees the handle. Streams that wait for a
 * ticket go on. Memory that the GPU still uses after a second stays mapped, and with the daemon,
 * until the process ends. NULL is allowed. */
KVD_API void kvd_close(kvd_handle* handle);

/* A level-1 region: `bytes` rounded up to whole slabs, mapped back to back at one address, zeroed,
 * pinned until freed. `granularity` is the alignment of address and size.
 * For Python's __cuda_array_interface__: shape (bytes,), typestr "|u1", data (address, False). */
typedef struct kvd_region {
  size_t struct_size;
  uint64_t id;
  void* address;
  uint64_t bytes; /* mapped, >= the bytes asked for */
  uint64_t granularity;
  int32_t device; /* the GPU that address belongs to, as cudaGetDevice counts; -1: host memory */
  uint32_t reserved;
} kvd_region;

KVD_API kvd_status kvd_region_allocate(kvd_handle* handle, uint64_t bytes, uint64_t timeout_ns,
                                       kvd_region* region);
/* Unmaps the region and hands its slabs back. The address is invalid afterwards. With CUDA memory
 * it first waits for all work that this process has given the GPU, as cudaFree does.
 * KVD_WOULD_BLOCK while tensors of kvd_region_dlpack view it, while kvd_hold_mappings is in force,
 * and where a graph is captured without kvd_hold_mappings: that capture has failed. */
KVD_API kvd_status kvd_region_free(kvd_handle* handle, uint64_t region_id, uint64_t timeout_ns);

/* A region for memory that comes and goes, so that several engines can share the pool. It is
 * addresses for `bytes`, rounded up to whole slabs, with no memory behind them. Reading or writing
 * there is an error until kvd_region_grow has put memory there. With CUDA memory one slab of the
 * GPU stands there, beside what kvd lends: what is written there is lost. A tensor or a cache may
 * cover all of it; a cache's copy fails where one of its blocks has no memory. kvd_region_free ends
 * it. */
KVD_API kvd_status kvd_region_reserve(kvd_handle* handle, uint64_t bytes, uint64_t timeout_ns,
                                      kvd_region* region);
/* Puts a zeroed slab behind each of at most 4096 positions, all or none: position p is at address +
 * p * granularity. *part_id names them for kvd_region_shrink. KVD_OUT_OF_MEMORY, KVD_QUOTA_EXCEEDED
 * and KVD_DEADLINE_EXCEEDED: there is no room; KVD_INVALID_ARGUMENT: a position is named twice or
 * has memory; KVD_UNAVAILABLE: the daemon it was reserved with is gone. */
KVD_API kvd_status kvd_region_grow(kvd_handle* handle, uint64_t region_id,
                                   const uint32_t* positions, uint32_t count, uint64_t timeout_ns,
                                   uint64_t* part_id);
/* For a region whose daemon is gone, so that the engine can go on with a request that needs more
 * than there is: as kvd_region_grow, by memory that this process allocates. It stays until the
 * region is freed, and no daemon knows of it. KVD_INVALID_ARGUMENT while the daemon is there;
 * KVD_OUT_OF_MEMORY: the host or the GPU has no more. */
KVD_API kvd_status kvd_region_back(kvd_handle* handle, uint64_t region_id,
                                   const uint32_t* positions, uint32_t count, uint64_t timeout_ns);
/* Unmaps a part and hands its slabs back; the addresses stay reserved. Nothing may use them any
 * more. With CUDA memory it first waits for all work that this process has given the GPU. */
KVD_API kvd_status kvd_region_shrink(kvd_handle* handle, uint64_t region_id, uint64_t part_id,
                                     uint64_t timeout_ns);
/* The same where the caller has seen that the device is done with all that used the part, by an
 * event for instance: waits for nothing of the device, and harms no capture. */
KVD_API kvd_status kvd_region_shrink_idle(kvd_handle* handle, uint64_t region_id, uint64_t part_id,
                                          uint64_t timeout_ns);

/* What requests with one goal need: either those that await their first token, or those that have
 * it. */
typedef struct kvd_need {
  uint64_t bytes;       /* of wanted_bytes */
  uint64_t least_bytes; /* what the oldest of them needs to run, kept_bytes included */
  uint64_t age_ns;      /* of the oldest */
  uint64_t ttft_ns;     /* their goal; 0: that of their class */
  uint32_t slo_class;   /* kvd_slo_class(); 0: that of the session's domain */
  uint32_t begun;       /* 1: they have their first tokens */
} kvd_need;
#define KVD_MAX_NEEDS 16u

/* What the requests with blocks in such a region need. */
typedef struct kvd_demand {
  size_t struct_size;
  uint64_t kept_bytes;   /* never handed back */
  uint64_t least_bytes;  /* what its oldest request needs to run, kept_bytes included */
  uint64_t wanted_bytes; /* what all its requests would use */
  uint64_t grain_bytes;  /* beyond what is kept it comes and goes by multiples of this */
  uint64_t age_ns;       /* of its oldest request; 0: there is none */
  /* The needs by goal: need_count entries, KVD_MAX_NEEDS at most. Requests with less time until
   * their first token is due get memory before others. NULL: no goals count. */
  const kvd_need* needs;
  size_t need_count;
} kvd_demand;

/* How many *bytes the region may have now, beside all other growing regions of the node. If that is
 * less than it has, parts are to be handed back soon, as others need them. If it is more, the
 * region may grow up to it. Nothing is taken away. Ask every few steps: after 2 s without a
 * question kvd assumes that nothing more is wanted. An engine that falls idle hands back what it
 * does not keep first, as it will not hear that others need it. */
KVD_API kvd_status kvd_region_share(kvd_handle* handle, uint64_t region_id,
                                    const kvd_demand* demand, uint64_t timeout_ns, uint64_t* bytes);

/* Call these two around the capture of a CUDA graph, whichever stream and thread of the process
 * captures. Between them kvd neither maps nor unmaps memory of a GPU in this process, for any
 * handle, since that would end captures (the driver fails them with 900 or 901). What the daemon
 * wants mapped or unmapped waits; kvd_region_allocate and kvd_region_free answer KVD_WOULD_BLOCK,
 * kvd_torch_free waits for the release. Holds add up. KVD_DEADLINE_EXCEEDED: a mapping under way
 * did not end in time, and nothing is held. */
KVD_API kvd_status kvd_hold_mappings(uint64_t timeout_ns);
KVD_API void kvd_release_mappings(void);

/* The daemon's round trip, for health checks. */
KVD_API kvd_status kvd_ping(kvd_handle* handle, uint64_t timeout_ns);

/* ---- level 3: kvd schedules ----
 *
 * An engine submits requests, then calls kvd_step between (or during) iterations: it reports what
 * finished and gets the next run list. Before it touches a request's blocks it waits for the
 * entry's ticket. After the daemon died the first of these calls returns KVD_UNAVAILABLE once:
 * tokens of the step are to be dropped and the requests submitted again. */

/* What the daemon granted at attach. */
typedef struct kvd_session_info {
  size_t struct_size;
  uint32_t engine; /* the session's number in status and metrics */
  uint32_t layers;
  uint32_t layers_per_block;
  uint32_t block_tokens;
  uint32_t layer_groups;
  uint32_t reserved;
  uint64_t bytes_per_token_per_layer;
  uint64_t block_bytes;
  uint64_t slab_bytes;
  uint64_t generation; /* another one after the client attached again; with boot_id: unique */
  uint32_t memory;     /* KVD_MEMORY_HOST or KVD_MEMORY_CUDA; the same for the handle's life */
  int32_t device;      /* the GPU, as cudaGetDevice counts; -1: host memory */
  uint8_t device_uuid[16];
  uint8_t boot_id[16]; /* of the daemon; another one after its restart */
} kvd_session_info;

KVD_API kvd_status kvd_get_session_info(kvd_handle* handle, kvd_session_info* info);

typedef struct kvd_request {
  size_t struct_size;
  uint64_t id; /* the engine's own number, unique within the session */
  uint64_t prompt_tokens;
  uint64_t max_new_tokens;
  uint64_t ttft_slo_ns; /* 0: the domain's default */
  uint64_t tbt_slo_ns;
  /* What the prompt is: ids of all its prompt_tokens tokens, or NULL. Requests whose leading
   * tokens, adapter and salt are the same find each other's blocks; what is not told is neither
   * kept nor found. Only kvd_submit reads it. */
  const uint32_t* tokens;
  const char* adapter; /* the LoRA adapter's name; NULL: none */
  const char* salt;    /* keeps users of one engine apart; NULL: none */
  uint64_t gap_slo_ns; /* the longest wait for a token after the first; 0: the domain's default */
} kvd_request;

KVD_API kvd_status kvd_submit(kvd_handle* handle, const kvd_request* request, uint64_t timeout_ns);
/* Adds `count` tokens of the answer behind those that were told. Blocks that they fill can be found
 * once the request has ended. Call it before the report that ends the request. KVD_NOT_FOUND for a
 * request that was submitted without tokens. */
KVD_API kvd_status kvd_append_tokens(kvd_handle* handle, uint64_t request, const uint32_t* tokens,
                                     size_t count, uint64_t timeout_ns);
/* In place of tokens: gives digests of 32 bytes each, made by the engine itself, of the blocks from
 * `first` on. In order, without gaps, each once. */
KVD_API kvd_status kvd_name_blocks(kvd_handle* handle, uint64_t request, uint32_t first,
                                   const uint8_t* digests, size_t count, uint64_t timeout_ns);

/* Entries of arrays have a fixed size: an array cannot grow its elements. */
#define KVD_REPORT_FINISHED 1u
typedef struct kvd_step_report {
  uint64_t request;
  uint64_t tokens; /* tokens whose KV is complete in its blocks */
  uint32_t flags;  /* KVD_REPORT_… */
  uint32_t reserved;
} kvd_step_report;

#define KVD_RUN_PREFILL 1u
#define KVD_RUN_SWAPPED_IN 2u
#define KVD_RUN_STREAMED 4u /* kvd_wait_layer before each layer group of the iteration */
typedef struct kvd_run_entry {
  uint64_t request;
  uint64_t tokens_present; /* tokens whose KV its blocks hold already */
  uint64_t ticket;         /* for kvd_wait before touching the blocks; 0: none */
  uint32_t tokens;         /* tokens to process: a prefill chunk, or 1 */
  uint32_t flags;          /* KVD_RUN_… */
  uint32_t distance;       /* k: layers k, 2k, ... are streamed; 0: all resident */
  uint32_t row;            /* its row in the block table */
} kvd_run_entry;

typedef enum kvd_hold_reason {
  KVD_HOLD_NONE = 0,
  KVD_HOLD_WAITING = 1,         /* not admitted yet */
  KVD_HOLD_NO_MEMORY = 2,       /* admitted, its blocks are not free yet */
  KVD_HOLD_SWAPPED_OUT = 3,     /* rotated out */
  KVD_HOLD_PROMISED = 4,        /* another engine has not handed over its blocks yet */
  KVD_HOLD_SLAB_NOT_MAPPED = 5, /* a slab is still on its way to this process */
  KVD_HOLD_FORCED = 6,          /* rotated out by kvd_rotate */
  KVD_HOLD_COMPLETE = 7,        /* has all the tokens it asked for: report it finished */
  KVD_HOLD_PAUSED = 8,          /* the batch meets its SLOs only without it; it keeps its place */
  KVD_HOLD_OUT_OF_MEMORY = 9,   /* kvd has ended it: nobody could go on for want of memory */
  KVD_HOLD_DRAINED = 10         /* kvd has ended it: the engine is out of service (kvdctl drain) */
} kvd_hold_reason;

typedef struct kvd_hold_entry {
  uint64_t request;
  uint32_t reason; /* kvd_hold_reason */
  uint32_t reserved;
} kvd_hold_entry;

typedef struct kvd_step_input {
  size_t struct_size;
  const kvd_step_report* reports;
  uint64_t report_count;
  uint64_t iteration_finished; /* highest iteration whose reads and writes are done */
  uint64_t iteration_running;  /* the one still executing; 0: none */
} kvd_step_input;

/* `run` and `hold` belong to the handle and stay valid until its next kvd_step. */
typedef struct kvd_step_result {
  size_t struct_size;
  uint64_t iteration;
  const kvd_run_entry* run;
  uint64_t run_count;
  const kvd_hold_entry* hold;
  uint64_t hold_count;
} kvd_step_result;

KVD_API kvd_status kvd_step(kvd_handle* handle, const kvd_step_input* input, uint64_t timeout_ns,
                            kvd_step_result* result);
/* Returns once the ticket's copy is complete. */
KVD_API kvd_status kvd_wait(kvd_handle* handle, uint64_t ticket, uint64_t timeout_ns);
/* Before layer group `group` (from 0) of an iteration whose run list has a streamed entry: returns
 * once the group's blocks are all in HBM. */
KVD_API kvd_status kvd_wait_layer(kvd_handle* handle, uint64_t iteration, uint32_t group,
                                  uint64_t timeout_ns);
/* Says that all reads and writes of the layer group have ended, for the whole batch, so that what
 * it streamed may be overwritten. Call it for the groups in order. Returns at once. */
KVD_API kvd_status kvd_layer_done(kvd_handle* handle, uint64_t iteration, uint32_t group);
/* Does the same as kvd_wait for a stream of kvd's GPU: `custream` is a CUstream or cudaStream_t,
 * NULL the default stream. Work that is put into the stream later starts once the ticket's copy is
 * complete. Returns at once. Only for tickets of this session's run lists; KVD_INVALID_ARGUMENT
 * while the stream is being captured. The stream is one of the GPU's primary context, which the
 * runtime API uses. Put it in right before the work that needs it: many hundred launches behind a
 * stream that waits block the thread that launches, and where CUDA_DEVICE_MAX_CONNECTIONS is 1
 * other streams may wait behind this one. If the daemon dies the stream goes on WITHOUT the bytes:
 * ask kvd_confirm before using what it computed. KVD_UNSUPPORTED with host memory and where the
 * driver, or a container, does not allow it: use kvd_wait. */
KVD_API kvd_status kvd_wait_on_stream(kvd_handle* handle, uint64_t ticket, void* custream);
/* kvd_wait_layer for a stream, with the terms of kvd_wait_on_stream; only for iterations whose run
 * list has a streamed entry. */
KVD_API kvd_status kvd_wait_layer_on_stream(kvd_handle* handle, uint64_t iteration, uint32_t group,
                                            void* custream);
/* As kvd_layer_done, once the stream has come here. Returns at once. Use one stream for all groups
 * of an iteration, or kvd_layer_done for all. */
KVD_API kvd_status kvd_layer_done_on_stream(kvd_handle* handle, uint64_t iteration, uint32_t group,
                                            void* custream);
/* Call it after the streams' work is done and before a token of it leaves. KVD_UNAVAILABLE: a wait
 * was ended without its bytes; drop the step and submit the requests again. */
KVD_API kvd_status kvd_confirm(kvd_handle* handle);
/* For an engine that has nothing to run: returns when a copy out of HBM completes, which may have
 * made room, or when the time is over; both are KVD_OK. */
KVD_API kvd_status kvd_wait_for_room(kvd_handle* handle, uint64_t timeout_ns);
/* The address of a block in this process, for a row of the last kvd_step's run list. */
KVD_API kvd_status kvd_block_address(kvd_handle* handle, uint32_t row, uint32_t group,
                                     uint32_t block, void** address);
/* The addresses of the first `count` blocks of a row's group. KVD_NOT_FOUND where it has fewer.
 */
KVD_API kvd_status kvd_block_addresses(kvd_handle* handle, uint32_t row, uint32_t group,
                                       uint64_t count, void** addresses);
KVD_API kvd_status kvd_finish(kvd_handle* handle, uint64_t request, uint64_t timeout_ns);
/* Gives a request up, whatever its state. */
KVD_API kvd_status kvd_abort(kvd_handle* handle, uint64_t request, uint64_t timeout_ns);

typedef enum kvd_direction { KVD_ROTATE_OUT = 1, KVD_ROTATE_IN = 2 } kvd_direction;
/* Forces one request out of HBM, or back in. */
KVD_API kvd_status kvd_rotate(kvd_handle* handle, uint64_t request, kvd_direction direction,
                              uint64_t timeout_ns);
/* Asks for room for `tokens` more tokens of the request; `blocks` is the number granted per layer
 * group. They have addresses from the next kvd_step on, whose run list names a table with them. */
KVD_API kvd_status kvd_allocate_blocks(kvd_handle* handle, uint64_t request, uint64_t tokens,
                                       uint64_t timeout_ns, uint32_t* blocks);

typedef struct kvd_placement_entry {
  uint64_t request;
  uint64_t resident_blocks;
  uint32_t distance;
  uint32_t reserved;
} kvd_placement_entry;

/* `entries` belongs to the handle and stays valid until its next kvd_place or kvd_place_layers. */
typedef struct kvd_placement {
  size_t struct_size;
  uint64_t budget_blocks;
  const kvd_placement_entry* entries;
  uint64_t entry_count;
} kvd_placement;

/* Plans placement for the given running requests now; count 0: for all. */
KVD_API kvd_status kvd_place(kvd_handle* handle, const uint64_t* requests, uint64_t count,
                             uint64_t timeout_ns, kvd_placement* placement);

/* What the daemon counts for this session. */
typedef struct kvd_stats {
  size_t struct_size;
  uint64_t region_bytes;
  uint64_t hbm_bytes;
  uint64_t dram_bytes;
  uint64_t requests_waiting;
  uint64_t requests_running;
  uint64_t requests_rotary;
  uint64_t rotations_out;
  uint64_t rotations_in;
} kvd_stats;

KVD_API kvd_status kvd_get_stats(kvd_handle* handle, uint64_t timeout_ns, kvd_stats* stats);

/* ---- the engine places ----
 *
 * For an engine that picks block ids itself, like vLLM, whose blocks lie in a region or wherever:
 * before each step it tells what it has, and kvd's policies answer who leaves, who comes in and how
 * many prompt tokens the step may have. The session has no shape (layers = 0 at kvd_open); it calls
 * no kvd_submit and no kvd_step. kvd keeps nothing that the engine has to undo: each call tells
 * everything, and an answer that was not followed is made anew. */

#define KVD_SCHED_WAITING                                                                       \
  1u                        /* a new prompt, or one that was preempted and has to be recomputed \
                             */
#define KVD_SCHED_PARKED 2u /* was preempted, and its blocks are kept for its return */
#define KVD_SCHED_RUNNING 3u
/* A value of blocks_to_return for a running request that cannot be parked, so it would be
 * recomputed if it left. Such requests never leave for others; the engine finds the room that they
 * lack to grow. */
#define KVD_SCHED_RECOMPUTED UINT32_MAX
#define KVD_SCHED_MAX_REQUESTS 2048u
#define KVD_SCHED_ANY_TOKENS UINT32_MAX

/* Ages are nanoseconds until now: at least 1, or 0 for none. Goals are nanoseconds, at most an
 * hour. 80 bytes, without padding: Python may pack it as "<Q8I5Q". */
typedef struct kvd_sched_request {
  uint64_t id;    /* the engine's own number, not 0, once in a call */
  uint32_t state; /* KVD_SCHED_WAITING, _PARKED or _RUNNING */
  uint32_t prompt_tokens;
  uint32_t computed_tokens;  /* whose KV it has; parked: whose KV is kept */
  uint32_t generated_tokens; /* of its answer */
  uint32_t max_new_tokens;
  uint32_t blocks;             /* running: those that come free when it leaves */
  uint32_t blocks_to_return;   /* running: 0, or KVD_SCHED_RECOMPUTED; the others: needed to come
                                  in, 0: reckoned by its tokens */
  uint32_t slo_class;          /* kvd_slo_class(); 0: that of the session's domain */
  uint64_t age_ns;             /* since it arrived */
  uint64_t first_token_age_ns; /* 0: none yet */
  uint64_t last_token_age_ns;  /* 0: none yet */
  uint64_t ttft_ns;            /* 0: of its SLO class */
  uint64_t tbt_ns;             /* 0: of its SLO class */
} kvd_sched_request;

typedef struct kvd_sched_input {
  size_t struct_size;
  uint64_t free_blocks;  /* that requests may take, cached ones without owner included */
  uint64_t total_blocks; /* that requests can have at all, free or not */
  uint64_t block_bytes;  /* of all layers; 0: parked blocks do not lie in kvd's DRAM */
  uint64_t last_step_ns; /* that the last iteration took; 0: none since the last call */
  uint32_t block_tokens;
  uint32_t last_step_prefill_tokens; /* prompt tokens of it */
  uint32_t last_step_decodes;        /* requests that made one token in it */
  uint32_t max_batched_tokens;       /* the engine's own bound of a step; 0: none */
  uint32_t max_running;              /* the same of running requests; 0: none */
  uint32_t reserved;
  /* All requests that run or are parked, and the waiting ones that could come in: at most
   * KVD_SCHED_MAX_REQUESTS, in any order. A request that ran and is not named any more has ended.
   */
  const kvd_sched_request* requests;
  uint64_t count;
} kvd_sched_input;

/* The arrays are the caller's, with room for `count` ids each. */
typedef struct kvd_sched_result {
  size_t struct_size;
  uint64_t* preempt; /* running requests that leave before the step, in this order: park them */
  uint64_t preempt_capacity;
  uint64_t preempt_count;
  uint64_t* admit; /* waiting and parked ones that come in, in this order; the rest stays out */
  uint64_t admit_capacity;
  uint64_t admit_count;
  /* Prompt tokens that the step may compute, all requests together, besides one token for each that
   * decodes; KVD_SCHED_ANY_TOKENS: no bound. */
  uint32_t prefill_tokens;
  uint32_t reserved;
} kvd_sched_result;

/* Makes one round trip. It ends by timeout_ns and never attaches, so that a step waits no longer
 * than it wants to. KVD_UNAVAILABLE at once where the daemon is gone: go on as without kvd, and
 * call kvd_ping, from another thread, to attach again. KVD_DEADLINE_EXCEEDED: kvd, or another call
 * on the handle, took longer; the session goes on. KVD_INVALID_ARGUMENT: the session has a shape,
 * there are more requests than may be, an array of the result is too small, an id is 0 or named
 * twice, or a number is out of range. After a failure the counts are 0. Thread-safe as every call.
 * */
KVD_API kvd_status kvd_schedule(kvd_handle* handle, const kvd_sched_input* input,
                                uint64_t timeout_ns, kvd_sched_result* result);
/* The longest time that the user of a request may be without a token, after the first: an hour at
 * most; 0: the gap of its class. Say it once, after the first kvd_schedule that names the request.
 * A request that kvd does not know is passed over, and the session's end forgets all. At most 4096.
 * Never attaches, like kvd_schedule. KVD_UNSUPPORTED: the daemon is older, and the class's gap
 * counts. */
typedef struct kvd_request_gap {
  uint64_t id;
  uint64_t gap_ns;
} kvd_request_gap;
KVD_API kvd_status kvd_set_gaps(kvd_handle* handle, const kvd_request_gap* gaps, size_t count,
                                uint64_t timeout_ns);
/* ---- which layers stay ---- */

typedef struct kvd_layers_request {
  uint64_t id;
  uint64_t tokens; /* whose KV it has; it grows by one a step */
} kvd_layers_request;

typedef struct kvd_layers_input {
  size_t struct_size;
  uint64_t capacity_blocks; /* blocks of one layer that HBM has room for */
  uint64_t block_bytes;     /* of one layer */
  uint64_t step_ns;         /* that a step computes, waits for layers left out */
  uint32_t layers;
  uint32_t block_tokens;
  const kvd_layers_request* requests; /* at most 1024 */
  uint64_t count;
} kvd_layers_input;

/* Which layers of running requests are to stay in HBM, by kvd's placement policy: the last plan
 * that was made, of those of its requests that are named now; layers k, 2k, ... are to be streamed,
 * k being the distance, and none where that is 0. Another plan is made meanwhile, so ask again some
 * steps later. `entries` belongs to the handle and stays valid until its next kvd_place or
 * kvd_place_layers. For a session without a shape. Never attaches, like kvd_schedule.
 * KVD_UNSUPPORTED: the daemon is older. */
KVD_API kvd_status kvd_place_layers(kvd_handle* handle, const kvd_layers_input* input,
                                    uint64_t timeout_ns, kvd_placement* placement);

/* The number of an SLO class by its name, never 0; NULL: 0. It is computed here: a class that the
 * daemon does not know counts as the domain's. */
KVD_API uint32_t kvd_slo_class(const char* name);
/* ---- level 2: caches of an engine that places its blocks itself ----
 *
 * Such an engine keeps its KV in a region (level 1) and decides itself which block of it holds
 * what. It stores blocks in kvd's DRAM under digests of 32 bytes, which stand for all that the
 * tokens of a block, and those before it, are; kvd copies them there, and later back into other
 * blocks, of this engine or another one. Sessions of one domain whose caches have the same model,
 * block_tokens and block_bytes find each other's blocks; domains never do. Where the daemon has a
 * disk (disk.path), blocks that were stored or loaded again are written there, but for those that
 * are parked, and found and loaded from there when DRAM has them no more, or the daemon was started
 * anew.
 *
 * All calls may be made by any thread. kvd_cache_poll talks to nobody; the others wait for the
 * daemon's answer, at most timeout_ns, never for a copy, and for each other. */

/* The piece of block b that is `bytes` long at region + offset + b * stride. */
typedef struct kvd_block_piece {
  uint64_t offset; /* bytes */
  uint64_t stride; /* bytes; at least `bytes` where there are several blocks */
  uint64_t bytes;  /* not 0 */
} kvd_block_piece;

/* Lookups of the cache answer KVD_WOULD_BLOCK while kvd asks the servers that nodes share
 * (remote.servers) for what it lacks, for a tenth of the time that computing takes and at most
 * 0.2 s, and while it opens what the disk has of them. They are to be asked again soon. Without the
 * flag they answer at once what is known by then. */
#define KVD_CACHE_AWAIT_REMOTE 1u

typedef struct kvd_cache_options {
  size_t struct_size;
  /* All that the bytes of a block depend on beside its digest, in any words: the weights by their
   * content (a hash of them or of a sample; no path, name or time, under which there may be others
   * tomorrow), number format, positions and windows, rank, the version and kernels that lay the
   * bytes out, and how the pieces of a block follow each other. block_tokens and block_bytes are
   * added to it. What depends on the request (an adapter, an image) belongs into the digests, by
   * its content as well. An engine that cannot tell puts a random number there. Not NULL, not
   * empty; its first 191 characters are shown to people (`kvdctl cache`). */
  const char* model;
  uint32_t block_tokens; /* not 0 */
  uint32_t flags;        /* 0 or KVD_CACHE_AWAIT_REMOTE */
  /* The bytes of all pieces of a block together; at most a slab. 0: the cache is of the blocks of
   * this session's requests, to label them and to hear of changes alone. The session then has a
   * shape, and the model above. */
  uint64_t block_bytes;
  uint64_t region_id;            /* of this handle; 0: to look up and drop alone, without pieces */
  uint64_t blocks;               /* of the region: block ids are 0 to blocks - 1 */
  const kvd_block_piece* pieces; /* kept in this order; read by kvd_cache_open alone */
  uint32_t piece_count;          /* at most 4096 */
  uint32_t reserved_too;
} kvd_cache_options;

/* Opens a cache, at most 16 for a handle. It ends with kvd_cache_close, the handle, or the daemon.
 * Calls with it then answer KVD_UNAVAILABLE, and it is to be opened anew, with a new region.
 * KVD_INVALID_ARGUMENT: pieces that are not within the region, or have another sum than
 * block_bytes; KVD_NOT_FOUND: no such region. Stored blocks outlive the cache, except parked ones.
 */
KVD_API kvd_status kvd_cache_open(kvd_handle* handle, const kvd_cache_options* options,
                                  uint64_t timeout_ns, uint64_t* cache);
/* Copies under way go on. Parked blocks stay until they are dropped or the session ends. */
KVD_API kvd_status kvd_cache_close(kvd_handle* handle, uint64_t cache, uint64_t timeout_ns);

/* How many of the `count` digests (of 32 bytes each, one after the other) can be loaded now, from
 * the first on without a gap. A block that only the disk has counts where reading it takes less
 * time than computing it again (load.policy). It changes nothing, so it may be asked again and
 * again. Some blocks may have made way by the time of the load. KVD_WOULD_BLOCK: see
 * KVD_CACHE_AWAIT_REMOTE. */
KVD_API kvd_status kvd_cache_lookup(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                                    uint64_t count, uint64_t timeout_ns, uint64_t* leading);

/* Asks ahead for a kvd_cache_lookup of these digests, or of the first of them, that follows within
 * a second. Returns at once. The question goes with the next call of this handle, say kvd_schedule,
 * and the lookup after that has its answer without a round trip of its own. Where this call fails,
 * or where more than 64 wait to be looked up, the lookup asks as usual. At most 4096 digests. Never
 * attaches; KVD_WOULD_BLOCK: the daemon has not answered what was sent before;
 * KVD_DEADLINE_EXCEEDED: another thread's call is under way. */
KVD_API kvd_status kvd_cache_post_lookup(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                                         uint64_t count);

/* Parked: they stay until any session of the domain drops them or this session ends, and not just
 * until something worth more needs the room. Use a digest that only the engine knows (random), as
 * anybody else's drop ends it, too. */
#define KVD_CACHE_PARK 1u

/* Copies block block_ids[i] of the region to DRAM, to be found under digest i; at most 4096 blocks
 * a call, and 65536 of their pieces. The blocks are read until the ticket is over, so until then
 * the engine neither writes them nor frees them for others to write. kvd does not wait for what the
 * GPU still writes to them: synchronize their stream first. A digest that is there already costs no
 * copy. KVD_OUT_OF_MEMORY and KVD_QUOTA_EXCEEDED: DRAM is full of blocks that may not make way, and
 * nothing is stored; KVD_WOULD_BLOCK: 256 tickets of the handle are not over, or not polled since,
 * or more than 16384 blocks, or four times the bytes of its regions, would be under way, or DRAM is
 * just being made ready: try again when some are over. After any of these *ticket is 0.
 * KVD_DEADLINE_EXCEEDED and KVD_UNAVAILABLE: whether the daemon copies is not known; where *ticket
 * is not 0, poll it as if the call had succeeded. */
KVD_API kvd_status kvd_cache_store(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                                   const uint32_t* block_ids, uint64_t count, uint32_t flags,
                                   uint64_t timeout_ns, uint64_t* ticket);
/* Copies what was stored under digest i into block block_ids[i], each a different block. It copies
 * all, or answers KVD_NOT_FOUND and copies nothing. A block that only the disk has comes by way of
 * DRAM: the ticket is over later, and fails where a block cannot be read in the time that computing
 * it again takes, as far as the daemon knows that (kvd_schedule). The engine neither reads nor
 * writes the blocks before the ticket is over; after KVD_TICKET_FAILED their content is undefined.
 * Other codes as kvd_cache_store. */
KVD_API kvd_status kvd_cache_load(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                                  const uint32_t* block_ids, uint64_t count, uint64_t timeout_ns,
                                  uint64_t* ticket);
/* Ends the parking of the blocks under these digests, and they are no longer found. A store of them
 * that is under way is not kept. A later daemon may still find those that a disk has. Digests that
 * are not there are skipped. */
KVD_API kvd_status kvd_cache_drop(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                                  uint64_t count, uint64_t timeout_ns);

/* As kvd_cache_drop, for at most 4096 digests, but returns at once: it goes with the next call of
 * this handle. Other codes than KVD_OK as kvd_cache_post_lookup; then nothing is dropped. */
KVD_API kvd_status kvd_cache_post_drop(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                                       uint64_t count);

/* The blocks under these digests leave DRAM after all others of the domain, for time_ns from now on
 * or until the next call for them; time_ns 0: they are like any other again. For an agent whose
 * tool runs, and that soon goes on with its prompt. Blocks that are not in DRAM are skipped, so
 * call this once their stores are over. All of them are retained, or none where more than
 * cache.retain_share of the domain's DRAM would be (4096 at a time); cache.retain_most bounds the
 * time. *retained becomes how many of the blocks are retained. They may make way all the same where
 * nothing else is left to (kvd_cache_retained_evicted_bytes_total). KVD_INVALID_ARGUMENT: more than
 * 24 hours, or a daemon that does not know the call. */
KVD_API kvd_status kvd_cache_retain(kvd_handle* handle, uint64_t cache, const uint8_t* digests,
                                    uint64_t count, uint64_t time_ns, uint64_t timeout_ns,
                                    uint64_t* retained);

/* What an engine says of cached blocks (kvd_cache_hint). */
typedef enum kvd_hint {
  KVD_HINT_RETAIN = 1,  /* kvd_cache_retain */
  KVD_HINT_PIN = 2,     /* the same without an end */
  KVD_HINT_UNPIN = 3,   /* neither pinned, retained nor demoted any more */
  KVD_HINT_DEMOTE = 4,  /* they leave DRAM before all others, until they are loaded or stored */
  KVD_HINT_PREFETCH = 5 /* they come to DRAM from below it, and are retained there */
} kvd_hint;

/* Says what is to come of blocks, 4096 at a time. *taken becomes of how many. Blocks that are not
 * in DRAM are skipped, but for a prefetch. time_ns is that of a retain or a prefetch, at most 24
 * hours, and 0 of the others. Pinned blocks are retained until they are unpinned, whatever else is
 * said of them, or until no engine of the domain has been attached for cache.retain_most. Demoted
 * ones are offered to the disk at once where there is one; those that must make way before they are
 * written are lost. Whoever loads or stores them makes them like any other. Of the others the last
 * hint counts. Of a prefetch the leading blocks that kvd has are retained, and those that only the
 * disk or remote servers have are read one after the other while nobody waits for other reads, for
 * time_ns at most. *taken is how many are on their way; a lookup shows what has come. It ends with
 * the cache or the session, and with the first block that cannot be read. KVD_QUOTA_EXCEEDED:
 * nothing was pinned or prefetched, as more than cache.retain_share of the domain's DRAM would be
 * retained. KVD_WOULD_BLOCK: prefetches of 16384 blocks of this session wait. KVD_INVALID_ARGUMENT:
 * also a daemon that does not know the hint. */
KVD_API kvd_status kvd_cache_hint(kvd_handle* handle, uint64_t cache, uint32_t hint,
                                  const uint8_t* digests, uint64_t count, uint64_t time_ns,
                                  uint64_t timeout_ns, uint64_t* taken);

/* Labels `count` consecutive blocks, at most 1024, before or after they are stored: from then on
 * kvd_cache_get_changes tells every session of the domain with a cache of the same kind where they
 * are, and what they are of. `parent`: the digest of the block before the first; NULL: there is
 * none. `lora`: the adapter, at most 63 printable ASCII characters; NULL: none. `tokens`: those of
 * the blocks one after the other, block_tokens each, at most about 60000. *kept becomes how many
 * labels kvd keeps: it has room for a number of them. Never label what others must not learn of, as
 * blocks of a salted prompt. */
KVD_API kvd_status kvd_cache_label(kvd_handle* handle, uint64_t cache, const uint8_t* parent,
                                   const char* lora, const uint8_t* digests, uint64_t count,
                                   const uint32_t* tokens, uint64_t token_count,
                                   uint64_t timeout_ns, uint64_t* kept);

/* How much of the changes of a cache somebody has seen; zeros: nothing. */
typedef struct kvd_cache_cursor {
  uint64_t life;
  uint64_t start;
  uint64_t position;
} kvd_cache_cursor;

#define KVD_CHANGE_IN_DRAM 1u
#define KVD_CHANGE_ON_DISK 2u
#define KVD_CHANGE_IN_HBM 4u /* of blocks of requests alone */

/* A labelled block that came or went, as it is now. */
typedef struct kvd_cache_change {
  uint8_t digest[32];
  uint8_t parent[32];   /* zeros: it is the first */
  char lora[64];        /* empty: no adapter */
  uint32_t tiers;       /* KVD_CHANGE_; 0: it has gone */
  uint32_t token_count; /* 0 where it has gone */
  const uint32_t* tokens;
} kvd_cache_change;

/* It starts over: what was told before these is void. So it is for a new cursor, after much has
 * happened meanwhile, and with another daemon. */
#define KVD_CHANGES_OVER 1u
/* There are more: ask again at once. */
#define KVD_CHANGES_MORE 2u

typedef struct kvd_cache_changes {
  size_t struct_size;
  const kvd_cache_change* changes; /* the handle's, until its next kvd_cache_get_changes */
  uint64_t count;
  uint32_t flags; /* KVD_CHANGES_ */
  uint32_t reserved;
} kvd_cache_changes;

/* Which labelled blocks came to DRAM or the disk, or left them, since *cursor, in the order of
 * their last change: about a thousand at a time. A block may be told of before its parent. *cursor
 * becomes what to ask with the next time. One thread at a time. */
KVD_API kvd_status kvd_cache_get_changes(kvd_handle* handle, uint64_t cache,
                                         kvd_cache_cursor* cursor, uint64_t timeout_ns,
                                         kvd_cache_changes* changes);

typedef enum kvd_ticket_state {
  KVD_TICKET_PENDING = 0,
  KVD_TICKET_DONE = 1,  /* every byte is in place, and what was stored can be found */
  KVD_TICKET_FAILED = 2 /* also: the daemon is gone, or the ticket is unknown */
} kvd_ticket_state;

/* states[i], one byte, becomes the kvd_ticket_state of tickets[i]. Tickets end in any order. It
 * looks into memory shared with the daemon and sends no message. A ticket that was reported as over
 * frees its place, and reads the same until another ticket needs the place: poll every ticket until
 * it is over, and not after. */
KVD_API kvd_status kvd_cache_poll(kvd_handle* handle, const uint64_t* tickets, uint8_t* states,
                                  uint64_t count);
/* Returns once all of them are over, done or failed (kvd_cache_poll says which), or with
 * KVD_DEADLINE_EXCEEDED. Beside other calls. */
KVD_API kvd_status kvd_cache_wait(kvd_handle* handle, const uint64_t* tickets, uint64_t count,
                                  uint64_t timeout_ns);

/* ---- tensors ---- */

/* DLPack 0.8's DLManagedTensor and what it is made of, member for member; a program that includes
 * dlpack.h casts the pointer. A capsule named "dltensor" around it is what from_dlpack() takes. */
typedef struct kvd_dl_device {
  int32_t device_type; /* 1: CPU, 2: CUDA */
  int32_t device_id;
} kvd_dl_device;
typedef struct kvd_dl_data_type {
  uint8_t code; /* 1: unsigned integer */
  uint8_t bits;
  uint16_t lanes;
} kvd_dl_data_type;
typedef struct kvd_dl_tensor {
  void* data;
  kvd_dl_device device;
  int32_t ndim;
  kvd_dl_data_type dtype;
  int64_t* shape;
  int64_t* strides; /* in elements */
  uint64_t byte_offset;
} kvd_dl_tensor;
typedef struct kvd_dl_managed_tensor {
  kvd_dl_tensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct kvd_dl_managed_tensor* self);
} kvd_dl_managed_tensor;

/* The region as a tensor of its bytes (uint8, one dimension); view it as any other type and shape.
 * Call its deleter once: until then the region stays mapped and kvd_region_free is refused. A
 * tensor may outlive the handle; the daemon then keeps the memory back until this process has
 * ended. */
KVD_API kvd_status kvd_region_dlpack(kvd_handle* handle, uint64_t region_id, uint64_t timeout_ns,
                                     kvd_dl_managed_tensor** tensor);

/* For torch.cuda.memory.CUDAPluggableAllocator(libkvd_client.so, "kvd_torch_malloc",
 * "kvd_torch_free") within torch.cuda.use_mem_pool around the allocation of the KV cache: a pool
 * makes PyTorch's own out-of-memory error of NULL. As the allocator of all
 * (change_current_allocator) PyTorch takes NULL for an address: there use
 * kvd_torch_malloc_or_throw, which throws std::bad_alloc instead, and know that memory_stats,
 * memory_snapshot and reset_peak_memory_stats, which vLLM's profiling calls, then raise. Leave
 * expandable_segments off: some versions of PyTorch pass the allocator by with it. A pool gives
 * memory back when it is deleted.
 * Every allocation is a region of its own, so whole slabs: few and large ones, not activations.
 * The process attaches at the first call ($KVD_ENDPOINT). Failures write one line to stderr;
 * `device` must be the kvd's GPU. Free waits for the process's work on the GPU; while mappings are
 * held (kvd_hold_mappings), or `custream` is being captured, it is put off until a later call. */
KVD_API void* kvd_torch_malloc(ptrdiff_t bytes, int device, void* custream);
KVD_API void* kvd_torch_malloc_or_throw(ptrdiff_t bytes, int device, void* custream);
KVD_API void kvd_torch_free(void* address, ptrdiff_t bytes, int device, void* custream);

/* The sentence behind the last failure of this thread; never NULL, valid until the next call. */
KVD_API const char* kvd_last_error(void);
/* The name of a code, e.g. "OutOfMemory". */
KVD_API const char* kvd_strerror(kvd_status status);

#ifdef __cplusplus
}
#endif
#endif /* KVD_H */
