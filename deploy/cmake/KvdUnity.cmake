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

kvd_compile_alone(planner/policy load.cpp prefill_costs.cpp uniform_placement.cpp)
kvd_compile_alone(kvd/core tuning.cpp)
# A test has its own open_backend() in place of the one in here.
kvd_compile_alone(kvd/daemon backend.cpp)
if(KVD_HAVE_CUDA)
  kvd_compile_alone(tests/support/fakecuda vmm.cpp)
endif()
kvd_compile_alone(kvd/sim/figures beyond_engines.cpp beyond_policies.cpp beyond_unified.cpp
  layerkv_setting.cpp orbitflow_order.cpp orbitflow_search.cpp orbitflow_sensitivity.cpp
  superinfer_link.cpp superinfer_parameters.cpp)

if(KVD_BUILD_BENCH)
  kvd_compile_alone(tests/bench serve_svg.cpp)
endif()

# Targets of which most files would have to be listed.
foreach(target
    attention_test client_test daemon_cuda_test daemon_session_test ggml-kvd ggml-kvd-other
    host_backend_test kvd_daemon_process kvd_sim_workload mover_test planner_contract_test
    planner_policy_test pool_test transport_test)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  endif()
endforeach()
