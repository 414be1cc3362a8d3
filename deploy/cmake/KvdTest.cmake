# kvd_test(NAME SOURCES a_test.cpp … LIBRARIES kvd::pool … [LABELS unit …] [TIMEOUT s])
# One GoogleTest program, each of its tests a ctest entry. Labels: unit, contract, integration,
# engines, fault, sim, gpu, bench, fuzz, lint; besides llama, npm, cuda, nightly. `threads` marks
# what the tsan run takes.
find_package(GTest REQUIRED)
include(GoogleTest)

function(kvd_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS;ENVIRONMENT")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE kvd_options ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  gtest_discover_tests(${name}
    TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} ENVIRONMENT "${arg_ENVIRONMENT}")
endfunction()
