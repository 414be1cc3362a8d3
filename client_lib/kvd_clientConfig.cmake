include("${CMAKE_CURRENT_LIST_DIR}/kvd_clientTargets.cmake")
