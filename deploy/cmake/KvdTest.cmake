# kvd_test(NAME SOURCES a_test.cpp … LIBRARIES kvd::pool … [LABELS unit …] [TIMEOUT s]
#          [ENVIRONMENT A=1 …] [SERIAL])
# One GoogleTest program, each of its tests a ctest entry. Labels: unit, contract, integration,
# engines, fault, sim, gpu, bench, fuzz, lint; besides llama, npm, cuda, nightly. `threads` marks
# what the tsan run takes. SERIAL is for tests that measure: nothing runs beside them (the label
# bench implies it).
find_package(GTest REQUIRED)
include(GoogleTest)

# Everything the tsan run needs, so that it builds no more than that.
add_custom_target(kvd_threads_tests)

function(kvd_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "TIMEOUT" "SOURCES;LIBRARIES;LABELS;ENVIRONMENT")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  if("bench" IN_LIST arg_LABELS)
    set(arg_SERIAL TRUE)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE kvd_options ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  if("threads" IN_LIST arg_LABELS)
    add_dependencies(kvd_threads_tests ${name})
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
  file(CONFIGURE OUTPUT "${properties_file}" @ONLY CONTENT [==[
foreach(test IN LISTS @name@_TESTS)
  set_tests_properties("${test}" PROPERTIES LABELS "@arg_LABELS@" TIMEOUT "@arg_TIMEOUT@"
    ENVIRONMENT "@arg_ENVIRONMENT@" RUN_SERIAL "@arg_SERIAL@")
endforeach()
]==])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${properties_file}")
endmacro()
