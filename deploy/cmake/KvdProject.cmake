# What every target of kvd shares: language level, warnings, output folders, and the helper that
# declares one library a folder.
include(GNUInstallDirs)
find_package(Threads REQUIRED)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(KVD_CCACHE ccache)
if(KVD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths relative to the clone: a second clone, or a moved one, is served from the first one's cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}"
      CCACHE_NOHASHDIR=1 "${KVD_CCACHE}")
endif()

add_library(kvd_options INTERFACE)
target_include_directories(kvd_options INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
target_compile_options(kvd_options INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror)
if(CMAKE_UNITY_BUILD)
  # KvdUnity.cmake: one file's names are another's, and none is the main file. g++ 12 has false
  # warnings about code that a sanitizer has been through.
  target_compile_options(kvd_options INTERFACE -Wno-shadow
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage -Wno-maybe-uninitialized>)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
    target_compile_options(kvd_options INTERFACE -Wno-error)
  endif()
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)
  # g++ collects its garbage later: a tenth of its CPU time, for 200 MB more of memory.
  target_compile_options(kvd_options INTERFACE
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=800000>")
endif()
target_link_libraries(kvd_options INTERFACE Threads::Threads)

# ccache serves compilations with a precompiled header only when it is told not to mind macros that
# the header may have seen.
set(KVD_PRECOMPILED_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
if(KVD_CCACHE IN_LIST CMAKE_CXX_COMPILER_LAUNCHER)
  set(KVD_PRECOMPILED_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# The headers that all libraries read, compiled once, where several files are compiled as one: a
# quarter of a file's CPU time in release. Named as an include path finds them, not by where this
# clone is: the same for every clone.
if(CMAKE_UNITY_BUILD)
  add_library(kvd_standard_headers STATIC "${PROJECT_SOURCE_DIR}/deploy/cmake/standard_headers.cpp")
  target_link_libraries(kvd_standard_headers PRIVATE kvd_options)
  target_precompile_headers(kvd_standard_headers PRIVATE <deploy/cmake/standard_headers.hpp>)
  set_target_properties(kvd_standard_headers PROPERTIES
    CXX_COMPILER_LAUNCHER "${KVD_PRECOMPILED_LAUNCHER}")
endif()

# kvd_library(pool SOURCES a.cpp b.cpp [PUBLIC deps…] [PRIVATE deps…] [OWN_FLAGS])
# A static library `kvd_<name>` with the alias `kvd::<name>`. PUBLIC deps are those its headers need.
# OWN_FLAGS: its compiler flags are not those of the precompiled headers.
function(kvd_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "OWN_FLAGS" "" "SOURCES;PUBLIC;PRIVATE")
  add_library(kvd_${name} STATIC ${arg_SOURCES})
  add_library(kvd::${name} ALIAS kvd_${name})
  target_link_libraries(kvd_${name} PUBLIC kvd_options ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  if(TARGET kvd_standard_headers AND NOT arg_OWN_FLAGS)
    target_precompile_headers(kvd_${name} REUSE_FROM kvd_standard_headers)
    set_target_properties(kvd_${name} PROPERTIES
      CXX_COMPILER_LAUNCHER "${KVD_PRECOMPILED_LAUNCHER}")
  endif()
endfunction()

# The same for a folder of headers only.
function(kvd_header_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPENDS")
  add_library(kvd_${name} INTERFACE)
  add_library(kvd::${name} ALIAS kvd_${name})
  target_link_libraries(kvd_${name} INTERFACE kvd_options ${arg_DEPENDS})
endfunction()
