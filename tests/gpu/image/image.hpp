#pragma once

#include <cuda.h>

#include "ipc/vocabulary/result.hpp"
#include "kernels/device/cuda/driver/driver.hpp"

/// Puts device code, compiled by kvd_device_image(), into the object: NAME_image and NAME_ptx are
/// its two forms. At namespace scope, once a program for each name.
#define KVD_EMBED_DEVICE_IMAGE(name, fatbin, ptx)                                               \
  asm(".pushsection .rodata\n"                                                                  \
      ".balign 16\n.globl " #name "_image\n.hidden " #name "_image\n" #name                     \
      "_image:\n.incbin \"" fatbin                                                              \
      "\"\n"                                                                                    \
      ".balign 16\n.globl " #name "_ptx\n.hidden " #name "_ptx\n" #name "_ptx:\n.incbin \"" ptx \
      "\"\n.byte 0\n"                                                                           \
      ".popsection\n");                                                                         \
  extern "C" const unsigned char name##_image[], name##_ptx[]

namespace kvd::gpu {

/// Device code in two forms. The fatbin holds what this toolkit makes for each GPU it knows, which
/// drivers before the toolkit's own version (13.0: before 580) need not take. The PTX is text of
/// the first version that knows sm_80: every driver since CUDA 11.0 compiles it for its own GPU.
struct DeviceImage {
  const void* fatbin;
  const void* ptx;
};

/// Loads the image into the current context, for as long as that lives. Errors: Unsupported where
/// the driver takes neither form, with its answers to both.
[[nodiscard]] Result<CUmodule> load_image(const kernels::cuda::Driver& driver,
                                          const DeviceImage& image, const char* what);

}  // namespace kvd::gpu
