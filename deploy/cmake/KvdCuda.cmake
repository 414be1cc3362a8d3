# Says what becomes of KVD_WITH_CUDA. The daemon takes its memory through kernels/device, whose only
# backend so far is the host's; the CUDA backend joins there.
find_program(KVD_NVCC nvcc HINTS /usr/local/cuda/bin)
if(KVD_WITH_CUDA STREQUAL "ON")
  message(FATAL_ERROR "KVD_WITH_CUDA=ON: this version has no CUDA parts yet; use AUTO or OFF")
elseif(KVD_WITH_CUDA STREQUAL "OFF")
  message(STATUS "CUDA parts: off")
elseif(KVD_NVCC)
  message(STATUS "CUDA parts: none in this version (nvcc is there: ${KVD_NVCC}); host backend only")
else()
  message(STATUS "CUDA parts: none in this version, and no nvcc; host backend only")
endif()
