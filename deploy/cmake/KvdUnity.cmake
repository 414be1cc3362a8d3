# The presets that CI and newcomers build compile several files of a target as one (CMAKE_UNITY_BUILD):
# the headers they share are read, and the templates they share compiled, once. Measured in asan:
# kernels/device takes 25 s of CPU instead of 55. The preset `dev`, and clang-tidy, take file by file:
# they check that each includes what it uses, and hold the warnings that make no sense across files.
#
# Files of one target must then not give two things in anonymous namespaces the same name. Where
# they do ("redefinition of ..." in asan alone), rename one, or list the file or the target here to
# have it compiled by itself.
if(NOT CMAKE_UNITY_BUILD)
  return()
endif()

# kvd_compile_alone(FOLDER FILE…)
function(kvd_compile_alone folder)
  list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/${folder}/")
  set_source_files_properties(${ARGN} DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}"
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

kvd_compile_alone(planner/policy admission/prefill_costs.cpp load.cpp)
kvd_compile_alone(kvd/core door/tuning.cpp)
kvd_compile_alone(kvd/sim/workload generators.cpp predict.cpp trace_rows.cpp workload.cpp)
# A test has its own open_backend() in place of the one in here.
kvd_compile_alone(kvd/daemon memory/backend.cpp)
if(KVD_BUILD_TESTS AND KVD_HAVE_CUDA)
  kvd_compile_alone(tests/support/fakecuda memory/vmm.cpp)
endif()
if(KVD_BUILD_TESTS)
  kvd_compile_alone(tests/contract/planner placement_test.cpp)
  kvd_compile_alone(tests/integration/daemon group_test.cpp session_test.cpp starving_test.cpp
    streaming_test.cpp)
  kvd_compile_alone(tests/unit/attention vector_math_test.cpp)
  kvd_compile_alone(tests/unit/client_lib client_names_test.cpp mini_daemon.cpp)
  kvd_compile_alone(tests/unit/ipc transport/ring_test.cpp transport/zmq_command_test.cpp
    transport/zmtp_test.cpp)
  kvd_compile_alone(tests/unit/kernels device/host/host_backend_test.cpp)
  kvd_compile_alone(tests/unit/kvd/mover mover_test.cpp streams_test.cpp)
  kvd_compile_alone(tests/unit/kvd/pool tier_pool_model_test.cpp tier_pool_renewal_test.cpp
    tier_pool_retire_test.cpp)
  kvd_compile_alone(tests/unit/planner/policy load_test.cpp placement_test.cpp)
endif()

# Most files of these targets would have to be listed one by one.
foreach(target daemon_cuda_test ggml-kvd ggml-kvd-other kvd_daemon_process)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  endif()
endforeach()
