# kvd_test(NAME SOURCES a_test.cpp … LIBRARIES kvd::pool … [LABELS unit …] [TIMEOUT s]
#          [ENVIRONMENT A=1 …] [SERIAL] [FAKE_DRIVER A.Test …])
# One GoogleTest program, each of its tests a ctest entry. Under a sanitizer, whose start costs more
# than most of them (0.17 s of CPU time each), a program of unit tests is one entry. Labels: unit,
# contract, integration, engines, fault, sim, gpu, bench, fuzz, lint; besides llama, npm, cuda,
# nightly. `threads` marks what the tsan run takes. SERIAL is for tests that measure: nothing runs
# beside them (the label bench implies it). FAKE_DRIVER: what those tests' names begin with, as ctest has
# them, that only a fake driver can pass; they get the label fake-driver, which tests/gpu/run.sh leaves out.
find_package(GTest REQUIRED)
include(GoogleTest)

# Everything the tsan run needs, so that it builds no more than that.
add_custom_target(kvd_threads_tests)

# Test programs are built to be built fast: the code under test keeps the preset's flags, the tests
# themselves need less, and the headers they all read are compiled once. Measured on four of them:
# CPU time -50 % in the release preset with -O1, a fifth less again with -O0; -40 % in asan (-19 % by the
# headers alone).
add_library(kvd_test_options INTERFACE)
target_link_libraries(kvd_test_options INTERFACE kvd_options GTest::gmock)
if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo" OR CMAKE_BUILD_TYPE STREQUAL "Release")
  target_compile_options(kvd_test_options INTERFACE -O0 -g1)
endif()
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=[a-z,]*undefined")
  # These two check every access through a pointer. AddressSanitizer reports null by itself, and
  # misaligned data comes from the code under test, which keeps both checks.
  target_compile_options(kvd_test_options INTERFACE -fno-sanitize=null,alignment)
endif()

add_executable(kvd_test_headers "${PROJECT_SOURCE_DIR}/tests/support/test_headers.cpp")
target_link_libraries(kvd_test_headers PRIVATE kvd_test_options)
# Named as an include path finds it, not by where this clone is: the same for every clone.
target_precompile_headers(kvd_test_headers PRIVATE <tests/support/test_headers.hpp>)
set_target_properties(kvd_test_headers PROPERTIES CXX_COMPILER_LAUNCHER "${KVD_PRECOMPILED_LAUNCHER}"
  RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")

function(kvd_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "TIMEOUT" "SOURCES;LIBRARIES;LABELS;ENVIRONMENT;FAKE_DRIVER")
  # Longer than one wait (tests/support/patience.hpp), so that a wait in vain says what it was for.
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if("bench" IN_LIST arg_LABELS)
    set(arg_SERIAL TRUE)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE
    kvd_test_options ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  target_precompile_headers(${name} REUSE_FROM kvd_test_headers)
  list(FILTER arg_SOURCES INCLUDE REGEX "\\.c$")  # what is left: C has no use for them
  set_source_files_properties(${arg_SOURCES} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER "${KVD_PRECOMPILED_LAUNCHER}"
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  if("threads" IN_LIST arg_LABELS)
    add_dependencies(kvd_threads_tests ${name})
  endif()
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=" AND "unit" IN_LIST arg_LABELS AND NOT arg_ENVIRONMENT)
    add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 900
      RUN_SERIAL "${arg_SERIAL}")
    return()
  endif()
  gtest_discover_tests(${name}
    TEST_PREFIX "${name}." TEST_LIST ${name}_TESTS DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60)
  kvd_set_test_properties(${name})
endfunction()

# The PROPERTIES argument of gtest_discover_tests loses the second element of every list (seen with
# CMake 3.25: of two labels ctest knew one), so a file that ctest reads afterwards sets them.
# Reads the arg_… variables of kvd_test.
macro(kvd_set_test_properties name)
  set(properties_file "${CMAKE_CURRENT_BINARY_DIR}/${name}_properties.cmake")
  list(JOIN arg_FAKE_DRIVER "|" fake_driver)
  file(CONFIGURE OUTPUT "${properties_file}" @ONLY CONTENT [==[
foreach(test IN LISTS @name@_TESTS)
  set_tests_properties("${test}" PROPERTIES LABELS "@arg_LABELS@" TIMEOUT "@arg_TIMEOUT@"
    ENVIRONMENT "@arg_ENVIRONMENT@" RUN_SERIAL "@arg_SERIAL@")
  if(NOT "@fake_driver@" STREQUAL "" AND test MATCHES "^@name@\\.(@fake_driver@)")
    set_tests_properties("${test}" PROPERTIES LABELS "@arg_LABELS@;fake-driver")
  endif()
endforeach()
]==])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${properties_file}")
endmacro()
