/* Compiled as C11: the header is C, and a struct of an older program is taken for what it has. */
#include <string.h>

#include "kvd.h"

int kvd_c_round_trip(const char* endpoint);
int kvd_c_misuse(void);

/* Returns 0, or the number of the step that failed. */
int kvd_c_round_trip(const char* endpoint) {
  kvd_open_options options = {0};
  options.struct_size = sizeof options;
  options.endpoint = endpoint;
  options.engine_name = "c-program";
  kvd_handle* handle = NULL;
  if (kvd_open(&options, &handle) != KVD_OK) return 1;
  if (kvd_ping(handle, 1000000000u) != KVD_OK) return 2;
  kvd_region region = {sizeof region, 0, NULL, 0, 0, 0, 0};
  if (kvd_region_allocate(handle, 1, 1000000000u, &region) != KVD_OK) return 3;
  if (region.struct_size != sizeof region || region.address == NULL) return 4;
  memset(region.address, 1, region.bytes);
  kvd_stats stats = {sizeof stats, 0, 0, 0, 0, 0, 0, 0, 0};
  if (kvd_get_stats(handle, 1000000000u, &stats) != KVD_OK || stats.region_bytes == 0) return 5;
  /* A program that knows only the first member after the size. */
  struct {
    size_t struct_size;
    uint64_t region_bytes;
    uint64_t guard;
  } older = {sizeof older - sizeof(uint64_t), 0, 77};
  if (kvd_get_stats(handle, 1000000000u, (kvd_stats*)&older) != KVD_OK) return 6;
  if (older.region_bytes != stats.region_bytes || older.guard != 77) return 7;
  if (kvd_region_free(handle, region.id, 1000000000u) != KVD_OK) return 8;
  if (kvd_region_free(handle, region.id, 1000000000u) != KVD_NOT_FOUND) return 9;
  if (strstr(kvd_last_error(), "region") == NULL) return 10;
  kvd_close(handle);
  return 0;
}

int kvd_c_misuse(void) {
  kvd_open_options options;
  memset(&options, 0, sizeof options);
  kvd_handle* handle = NULL;
  if (kvd_open(&options, &handle) != KVD_INVALID_ARGUMENT) return 1;
  if (kvd_open(NULL, &handle) != KVD_INVALID_ARGUMENT) return 2;
  if (kvd_ping(NULL, 1) != KVD_INVALID_ARGUMENT) return 3;
  if (strcmp(kvd_strerror(KVD_QUOTA_EXCEEDED), "QuotaExceeded") != 0) return 4;
  kvd_close(NULL);
  return 0;
}
