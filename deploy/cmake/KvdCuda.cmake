# Says what becomes of KVD_WITH_CUDA: sets KVD_HAVE_CUDA, and where it is on makes the target
# kvd::cuda_headers. kvd speaks to the driver alone and finds it at run time: headers are all that a
# build needs, no library and no GPU. KVD_NVCC is where device code can be compiled.
find_program(KVD_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDAToolkit_ROOT /usr/local/cuda
             PATH_SUFFIXES bin)
get_filename_component(KVD_CUDA_ROOT "${KVD_NVCC}/../.." ABSOLUTE)
find_path(KVD_CUDA_INCLUDE cudaTypedefs.h
          HINTS ENV CUDA_HOME ENV CUDAToolkit_ROOT "${KVD_CUDA_ROOT}" /usr/local/cuda
          PATH_SUFFIXES include)

set(KVD_CUDA_VERSION 0)
if(KVD_CUDA_INCLUDE)
  file(STRINGS "${KVD_CUDA_INCLUDE}/cuda.h" line REGEX "^#define CUDA_VERSION ")
  string(REGEX MATCH "[0-9]+" KVD_CUDA_VERSION "${line}")
endif()

set(KVD_HAVE_CUDA FALSE)
if(KVD_WITH_CUDA STREQUAL "OFF")
  message(STATUS "CUDA parts: off")
elseif(KVD_CUDA_VERSION GREATER_EQUAL 13000)
  message(STATUS "CUDA parts: on (headers ${KVD_CUDA_VERSION} in ${KVD_CUDA_INCLUDE})")
  set(KVD_HAVE_CUDA TRUE)
elseif(KVD_WITH_CUDA STREQUAL "ON")
  message(FATAL_ERROR "KVD_WITH_CUDA=ON needs cuda.h and cudaTypedefs.h of CUDA 13.0 or newer: "
                      "install the toolkit, set CUDA_HOME, or use AUTO or OFF")
else()
  message(STATUS "CUDA parts: off, no headers of CUDA 13.0 or newer; host backend only")
endif()

if(KVD_HAVE_CUDA)
  add_library(kvd_cuda_headers INTERFACE)
  add_library(kvd::cuda_headers ALIAS kvd_cuda_headers)
  target_include_directories(kvd_cuda_headers SYSTEM INTERFACE "${KVD_CUDA_INCLUDE}")
  # What includes kernels/device/cuda asks for it first: #ifdef KVD_HAVE_CUDA.
  target_compile_definitions(kvd_cuda_headers INTERFACE KVD_HAVE_CUDA=1)
endif()

# kvd_device_image(kernels.cu user.cpp KVD_IMAGE)
# Compiles device code to one image for every GPU that kvd knows (and PTX for later ones), whose path
# the source that takes it in finds as the macro: the driver loads it, CUDA's runtime is not needed.
# KVD_IMAGE_PTX is the same as text that drivers before 580 take too: PTX 7.0, of CUDA 11.0, knows
# sm_80, and nvcc's own version is the newest only because nvcc always writes that one.
function(kvd_device_image device_source host_source macro)
  cmake_path(GET device_source STEM name)
  set(image "${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin")
  set(ptx "${CMAKE_CURRENT_BINARY_DIR}/${name}.ptx")
  set(source "${CMAKE_CURRENT_SOURCE_DIR}/${device_source}")
  add_custom_command(OUTPUT "${image}"
    COMMAND "${KVD_NVCC}" -fatbin -O3 -std=c++17
      -gencode arch=compute_80,code=sm_80
      -gencode arch=compute_90,code=sm_90
      -gencode arch=compute_100,code=sm_100
      "-gencode=arch=compute_120,code=[sm_120,compute_120]"
      "${source}" -o "${image}"
    DEPENDS "${source}" COMMENT "Compiling ${device_source}" VERBATIM)
  add_custom_command(OUTPUT "${ptx}"
    COMMAND "${KVD_NVCC}" -ptx -O3 -std=c++17 -arch=compute_80 "${source}" -o "${ptx}.new"
    COMMAND sed "s/^[.]version .*/.version 7.0/" "${ptx}.new" > "${ptx}"
    DEPENDS "${source}" COMMENT "Compiling ${device_source} for older drivers" VERBATIM)
  set_source_files_properties("${host_source}" PROPERTIES
    OBJECT_DEPENDS "${image};${ptx}"
    COMPILE_DEFINITIONS "${macro}=\"${image}\";${macro}_PTX=\"${ptx}\"")
endfunction()
