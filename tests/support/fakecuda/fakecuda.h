#pragma once

// What the fake driver offers to tests beside the driver API. A program that also runs on a real
// driver finds these by dlsym(RTLD_DEFAULT, …) and does without where they are absent.

#include <cuda.h>
#include <stddef.h>

#if defined(__cplusplus)
extern "C" {
#endif
#pragma GCC visibility push(default)

/// The shape of a launch, as cuLaunchKernel got it.
typedef struct {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
} FakecudaLaunch;

/// A host reference for a kernel: runs once a launch, on the stream's thread. `parameters` are
/// copies made at the launch. Device pointers among them are reached through fakecuda_access.
typedef void (*FakecudaKernel)(const FakecudaLaunch* launch, void** parameters);

/// Makes `name` known to cuModuleGetFunction. `sizes` holds each parameter's bytes; real modules
/// know them from their image. A second registration of a name replaces the first.
void fakecuda_register_kernel(const char* name, FakecudaKernel kernel, const size_t* sizes,
                              size_t parameters);

/// Where the CPU finds [pointer, pointer + bytes) of device memory, or NULL after reporting a fault
/// (latched as CUDA_ERROR_ILLEGAL_ADDRESS when called from a kernel). Within one mapping only. The
/// device pointers themselves are never readable by the CPU.
void* fakecuda_access(CUdeviceptr pointer, size_t bytes, int write);

/// How often `rule` was broken so far in this process; every rule when NULL.
size_t fakecuda_violations(const char* rule);

/// Writes the report (the JSON of FAKECUDA_REPORT) into `buffer`, always terminated; returns its
/// full length.
size_t fakecuda_report(char* buffer, size_t bytes);

/// Forgets everything, ends every stream and reads the environment again, as a new process would.
/// No other thread may be inside the driver.
void fakecuda_reset(void);

#pragma GCC visibility pop
#if defined(__cplusplus)
}
#endif
