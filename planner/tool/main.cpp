#include <iostream>
#include <vector>

#include "ipc/vocabulary/standard_streams.hpp"
#include "planner/tool/command_line.hpp"

int main(int argc, char** argv) {
  kvd::open_standard_descriptors();
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  const int status = kvd::planner::run_kvd_plan(arguments, std::cin, std::cout, std::cerr);
  return kvd::status_after_output("kvd-plan", status);
}
