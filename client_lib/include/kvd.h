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
  KVD_INTERNAL = 14
} kvd_status;

typedef struct kvd_client kvd_client;

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
} kvd_open_options;

KVD_API kvd_status kvd_open(const kvd_open_options* options, kvd_client** client);
/* Returns everything the session holds to the daemon and frees the handle. NULL is allowed. */
KVD_API void kvd_close(kvd_client* client);

/* A level-1 region: `bytes` rounded up to whole slabs, mapped back to back at one address, zeroed,
 * pinned until freed. `granularity` is the alignment of address and size. */
typedef struct kvd_region {
  size_t struct_size;
  uint64_t id;
  void* address;
  uint64_t bytes; /* mapped, >= the bytes asked for */
  uint64_t granularity;
} kvd_region;

KVD_API kvd_status kvd_region_allocate(kvd_client* client, uint64_t bytes, uint64_t timeout_ns,
                                       kvd_region* region);
/* Unmaps the region and hands its slabs back. The address is invalid afterwards. */
KVD_API kvd_status kvd_region_free(kvd_client* client, uint64_t region_id, uint64_t timeout_ns);

/* The daemon's round trip, for health checks. */
KVD_API kvd_status kvd_ping(kvd_client* client, uint64_t timeout_ns);

/* The sentence behind the last failure of this thread; never NULL, valid until the next call. */
KVD_API const char* kvd_last_error(void);
/* The name of a code, e.g. "OutOfMemory". */
KVD_API const char* kvd_strerror(kvd_status status);

#ifdef __cplusplus
}
#endif
#endif /* KVD_H */
