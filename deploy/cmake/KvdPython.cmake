# Tests written in Python, and the interpreter they run with: Debian's where there is one, as
# deploy/ci/install-deps.sh installs what it needs. -DKVD_PYTHON=… names another.
#
# kvd_python_test(NAME FILE LABELS … [TIMEOUT SECONDS] [PYTHON FILE] [ENVIRONMENT …])
#
# FILE ends with ctest.main() (tests/support/python). It finds kvd_client in client_lib/python, kvd by
# KVDTEST_BIN_DIR, and may skip all its tests with a reason. A build with a sanitizer has none of these
# tests: its library does not load into a Python that is built without.

find_program(KVD_PYTHON python3 HINTS /usr/bin DOC "Python 3.11 or newer, for tests")
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
  set(KVD_PYTHON_TESTS "no: built with a sanitizer")
elseif(NOT KVD_PYTHON)
  set(KVD_PYTHON_TESTS "python3 is not installed: apt-get install python3")
else()
  execute_process(COMMAND "${KVD_PYTHON}" -c "import sys; sys.exit(sys.version_info < (3, 11))"
    RESULT_VARIABLE too_old)
  if(too_old)
    set(KVD_PYTHON_TESTS "${KVD_PYTHON} is older than Python 3.11: name another with -DKVD_PYTHON=")
  else()
    set(KVD_PYTHON_TESTS "")
  endif()
endif()

function(kvd_python_test name file)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "TIMEOUT;PYTHON" "LABELS;ENVIRONMENT")
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT arg_PYTHON)
    set(arg_PYTHON "${KVD_PYTHON}")
  endif()
  if(KVD_PYTHON_TESTS)
    add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" -E echo "${name}: Skipped\n${KVD_PYTHON_TESTS}")
  else()
    add_test(NAME ${name} COMMAND "${arg_PYTHON}" "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
  endif()
  set(paths "${PROJECT_SOURCE_DIR}/client_lib/python:${PROJECT_SOURCE_DIR}/tests/support/python")
  set_tests_properties(${name} PROPERTIES
    LABELS "${arg_LABELS}" TIMEOUT "${arg_TIMEOUT}" SKIP_REGULAR_EXPRESSION ": Skipped"
    ENVIRONMENT "PYTHONPATH=${paths};PYTHONDONTWRITEBYTECODE=1;KVDTEST_BIN_DIR=${PROJECT_BINARY_DIR}/bin;KVD_CLIENT_LIBRARY=$<TARGET_FILE:kvd_client>;${arg_ENVIRONMENT}")
endfunction()

# Sets VARIABLE to what deploy/ci/SCRIPT.sh prints: where the programs are that some tests want, or nothing.
function(kvd_find_fetched variable script)
  execute_process(COMMAND sh "${PROJECT_SOURCE_DIR}/deploy/ci/${script}.sh" ${ARGN}
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# kvd_skipped_test(NAME WHY LABEL …): stands for tests that are not there. It says what is missing, so that
# nobody takes absent tests for passed ones.
function(kvd_skipped_test name why)
  add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" -E echo "${name}: Skipped\n${why}")
  set_tests_properties(${name} PROPERTIES LABELS "${ARGN}" SKIP_REGULAR_EXPRESSION ": Skipped")
endfunction()
