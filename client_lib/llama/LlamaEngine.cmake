# The pinned llama.cpp: prebuilt libraries from the npm package, headers from the source bundle that
# comes with it. The headers are checked out into the build tree; nothing of the engine is committed.
# Sets KVD_LLAMA_FOUND and, where it is on, the targets kvd_llama_headers and kvd_llama_engine.
set(KVD_LLAMA_FOUND OFF)
set(kvd_llama_libraries "${CMAKE_CURRENT_SOURCE_DIR}/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64")
set(kvd_llama_bundle "${CMAKE_CURRENT_SOURCE_DIR}/node_modules/node-llama-cpp/llama/gitRelease.bundle")
set(kvd_llama_source "${CMAKE_CURRENT_BINARY_DIR}/engine-source")
set(kvd_llama_remedy "run `npm ci --ignore-scripts --omit=optional` in client_lib/llama")

if(NOT KVD_WITH_LLAMA)
  message(STATUS "llama.cpp plugin: off (KVD_WITH_LLAMA=${KVD_WITH_LLAMA})")
  return()
endif()
# A plugin for an engine of the user's own: out of the headers in its source, for its version alone.
set(KVD_LLAMA_SOURCE "" CACHE PATH "Source of the llama.cpp that libggml-kvd.so is built for; empty: the pinned one")
if(KVD_LLAMA_SOURCE)
  cmake_path(ABSOLUTE_PATH KVD_LLAMA_SOURCE BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE kvd_llama_source)
  if(NOT EXISTS "${kvd_llama_source}/ggml/src/ggml-backend-impl.h")
    message(FATAL_ERROR "${kvd_llama_source} has no ggml/src/ggml-backend-impl.h: name the folder of llama.cpp's source")
  endif()
  file(READ "${kvd_llama_source}/ggml/CMakeLists.txt" kvd_ggml_lists)
  set(kvd_ggml_version "")
  foreach(part MAJOR MINOR PATCH)
    if(NOT kvd_ggml_lists MATCHES "GGML_VERSION_${part} ([0-9]+)")
      message(FATAL_ERROR "${kvd_llama_source}/ggml/CMakeLists.txt has no GGML_VERSION_${part}: take a newer llama.cpp")
    endif()
    string(APPEND kvd_ggml_version ".${CMAKE_MATCH_1}")
  endforeach()
  string(SUBSTRING "${kvd_ggml_version}" 1 -1 kvd_ggml_version)
  add_library(kvd_llama_headers INTERFACE)
  target_include_directories(kvd_llama_headers SYSTEM INTERFACE
    "${kvd_llama_source}/ggml/include" "${kvd_llama_source}/ggml/src")
  target_compile_definitions(kvd_llama_headers INTERFACE KVD_GGML_VERSION="${kvd_ggml_version}")
  set(KVD_LLAMA_FOUND ON)
  message(STATUS "llama.cpp plugin: on, for ggml ${kvd_ggml_version} alone (${kvd_llama_source})")
  return()
endif()
if(NOT EXISTS "${kvd_llama_libraries}/libggml-base.so" OR NOT EXISTS "${kvd_llama_bundle}")
  if(KVD_WITH_LLAMA STREQUAL "AUTO")
    message(STATUS "llama.cpp plugin: off, the npm packages are not installed (${kvd_llama_remedy})")
    return()
  endif()
  message(FATAL_ERROR "KVD_WITH_LLAMA=${KVD_WITH_LLAMA}, but the npm packages are missing: ${kvd_llama_remedy}")
endif()

# A new package version brings a new bundle: the stamp tells one checkout from another.
file(SIZE "${kvd_llama_bundle}" kvd_llama_stamp)
file(TIMESTAMP "${kvd_llama_bundle}" kvd_llama_time)
string(APPEND kvd_llama_stamp " ${kvd_llama_time} with ggml/CMakeLists.txt")
set(kvd_llama_stamped "")
if(EXISTS "${kvd_llama_source}/kvd-stamp")
  file(READ "${kvd_llama_source}/kvd-stamp" kvd_llama_stamped)
endif()
if(NOT kvd_llama_stamp STREQUAL kvd_llama_stamped)
  find_package(Git REQUIRED)
  file(REMOVE_RECURSE "${kvd_llama_source}")
  # A git hook that runs the build has its own repository in the environment.
  set(kvd_llama_git "${CMAKE_COMMAND}" -E env --unset=GIT_DIR --unset=GIT_WORK_TREE
    --unset=GIT_INDEX_FILE "${GIT_EXECUTABLE}")
  execute_process(COMMAND ${kvd_llama_git} clone --quiet --no-checkout
    "${kvd_llama_bundle}" "${kvd_llama_source}" COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${kvd_llama_git} -C "${kvd_llama_source}" sparse-checkout set --no-cone
    /include/ /ggml/CMakeLists.txt /ggml/include/ /ggml/src/ggml-backend-impl.h COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${kvd_llama_git} -C "${kvd_llama_source}" -c advice.detachedHead=false
    checkout --quiet HEAD COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE "${kvd_llama_source}/kvd-stamp" "${kvd_llama_stamp}")
endif()

add_library(kvd_llama_headers INTERFACE)
target_include_directories(kvd_llama_headers SYSTEM INTERFACE
  "${kvd_llama_source}/include" "${kvd_llama_source}/ggml/include" "${kvd_llama_source}/ggml/src")

# Linked by path, found again by rpath: the libraries stay where npm put them.
# The version is part of the file name.
file(GLOB kvd_llama_library "${kvd_llama_libraries}/libllama.*.so")
file(GLOB kvd_ggml_library "${kvd_llama_libraries}/libggml.*.so")
add_library(kvd_llama_engine INTERFACE)
target_link_libraries(kvd_llama_engine INTERFACE
  kvd_llama_headers "${kvd_llama_library}" "${kvd_ggml_library}"
  "${kvd_llama_libraries}/libggml-base.so")
set_target_properties(kvd_llama_engine PROPERTIES KVD_GGML_LIBRARY "${kvd_ggml_library}")
target_link_options(kvd_llama_engine INTERFACE "LINKER:-rpath,${kvd_llama_libraries}")
target_compile_definitions(kvd_llama_engine INTERFACE
  "KVD_LLAMA_BACKEND_DIR=\"${kvd_llama_libraries}\"")
set(KVD_LLAMA_FOUND ON)
message(STATUS "llama.cpp plugin: on (${kvd_llama_libraries})")
