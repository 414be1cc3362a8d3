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
endif()
target_link_libraries(kvd_options INTERFACE Threads::Threads)

# kvd_library(pool SOURCES a.cpp b.cpp [PUBLIC deps…] [PRIVATE deps…])
# A static library `kvd_<name>` with the alias `kvd::<name>`. PUBLIC deps are those its headers need.
function(kvd_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;PUBLIC;PRIVATE")
  add_library(kvd_${name} STATIC ${arg_SOURCES})
  add_library(kvd::${name} ALIAS kvd_${name})
  target_link_libraries(kvd_${name} PUBLIC kvd_options ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
endfunction()

# The same for a folder of headers only.
function(kvd_header_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPENDS")
  add_library(kvd_${name} INTERFACE)
  add_library(kvd::${name} ALIAS kvd_${name})
  target_link_libraries(kvd_${name} INTERFACE kvd_options ${arg_DEPENDS})
endfunction()
