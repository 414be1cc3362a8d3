# What an installed kvd has besides programs and libraries, and how it becomes Debian packages:
# deploy/package.sh runs cpack, one package for each group of components below, once kvd_packaged is built.

# Man pages, out of the programs' own --help (a build with a sanitizer has none).
find_program(KVD_PYTHON python3 HINTS /usr/bin DOC "Python 3.11 or newer, for tests")
set(manuals "${PROJECT_BINARY_DIR}/man")
if(KVD_PYTHON AND NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
  set(documented kvd kvd-holder kvdctl kvd-plan kvd-sim kvd-pattern kvd-engine)
  set(generator "${PROJECT_SOURCE_DIR}/deploy/package/man_pages.py")
  add_custom_command(OUTPUT "${manuals}/stamp"
    COMMAND "${KVD_PYTHON}" "${generator}" "${PROJECT_BINARY_DIR}/bin" "${manuals}" ${documented}
    COMMAND "${CMAKE_COMMAND}" -E touch "${manuals}/stamp"
    DEPENDS ${documented} "${generator}" COMMENT "Writing the man pages" VERBATIM)
  add_custom_target(kvd_man ALL DEPENDS "${manuals}/stamp")
endif()
install(DIRECTORY "${manuals}/man1" "${manuals}/man8" DESTINATION "${CMAKE_INSTALL_MANDIR}" OPTIONAL)

# bash looks for a file of the command's name.
foreach(program kvd kvdctl kvd-plan kvd-sim kvd-pattern kvd-engine)
  install(FILES "${PROJECT_SOURCE_DIR}/deploy/package/completion/kvd.bash"
    DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" RENAME "${program}")
endforeach()

# For the package only: `cmake --install` must not touch /etc, and the unit names /usr/bin.
set(system "${PROJECT_SOURCE_DIR}/deploy/package/system")
install(FILES "${system}/kvd.service" DESTINATION lib/systemd/system
  COMPONENT system EXCLUDE_FROM_ALL)
install(FILES "${system}/sysusers.conf" DESTINATION lib/sysusers.d RENAME kvd.conf
  COMPONENT system EXCLUDE_FROM_ALL)
install(FILES "${system}/tmpfiles.conf" DESTINATION lib/tmpfiles.d RENAME kvd.conf
  COMPONENT system EXCLUDE_FROM_ALL)
install(FILES "${PROJECT_SOURCE_DIR}/deploy/config/kvd.toml" DESTINATION /etc/kvd
  COMPONENT system EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_PACKAGE_NAME kvd)
set(CPACK_PACKAGE_VENDOR kvd)
set(KVD_CONTACT "kvd <kvd@localhost>" CACHE STRING "Who answers for the packages: a name and a mail address")
set(CPACK_PACKAGE_CONTACT "${KVD_CONTACT}")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL daemon documents system library client)
if(TARGET ggml-kvd)
  list(APPEND CPACK_COMPONENTS_ALL llama)
endif()
add_custom_target(kvd_packaged)
foreach(target kvd-admin kvd_client kvd_man ggml-kvd)
  if(TARGET ${target})
    add_dependencies(kvd_packaged ${target})
  endif()
endforeach()
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PROJECT_BINARY_DIR}/lib")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")

# What Debian wants in the folder of documents of each package.
set(scripts "${PROJECT_SOURCE_DIR}/deploy/package/debian")
set(changelog "${PROJECT_BINARY_DIR}/debian/changelog")
configure_file("${scripts}/changelog.in" "${changelog}" @ONLY)
execute_process(COMMAND gzip -9 -n -k -f "${changelog}" COMMAND_ERROR_IS_FATAL ANY)

# kvd_package(GROUP NAME … SECTION … DEPENDS … DESCRIPTION …): the package's facts.
function(kvd_package group)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "NAME;SECTION;DEPENDS;DESCRIPTION" "")
  string(REPLACE node system component "${group}")
  install(FILES "${scripts}/copyright" DESTINATION "share/doc/${arg_NAME}"
    COMPONENT "${component}" EXCLUDE_FROM_ALL)
  install(FILES "${changelog}.gz" DESTINATION "share/doc/${arg_NAME}" RENAME changelog.Debian.gz
    COMPONENT "${component}" EXCLUDE_FROM_ALL)
  string(TOUPPER "${group}" upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME "${arg_NAME}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION "${arg_SECTION}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${arg_DEPENDS}" PARENT_SCOPE)
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${arg_DESCRIPTION}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${arg_DESCRIPTION}" PARENT_SCOPE)
endfunction()

set(library_dependency "libkvd-client0 (>= ${PROJECT_VERSION})")
kvd_package(node NAME kvd SECTION net
  DEPENDS "${library_dependency}, systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles"
  DESCRIPTION "The daemon. It owns the memory of the KV caches of one machine and lends it to
inference engines in other processes. With kvdctl, the simulator and a reference engine.")
kvd_package(library NAME libkvd-client0 SECTION libs
  DESCRIPTION "The client library: what an inference engine attaches to kvd with, in C++ and C.")
kvd_package(client NAME libkvd-client-dev SECTION libdevel
  DEPENDS "libkvd-client0 (>= ${PROJECT_VERSION})"
  DESCRIPTION "For building engines: headers, CMake and pkg-config files, and an example.")
kvd_package(llama NAME kvd-llama SECTION net DEPENDS "${library_dependency}"
  DESCRIPTION "llama.cpp on the memory of kvd: a backend that ggml loads unmodified (GGML_BACKEND_PATH).")
set(CPACK_DEBIAN_NODE_PACKAGE_CONTROL_EXTRA
  "${scripts}/conffiles;${scripts}/postinst;${scripts}/prerm;${scripts}/postrm")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA "${scripts}/triggers")

include(CPack)
foreach(component daemon documents system)
  cpack_add_component(${component} GROUP node)
endforeach()
foreach(component library client llama)
  cpack_add_component(${component} GROUP ${component})
endforeach()
