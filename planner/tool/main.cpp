#include <iostream>
#include <vector>

#include "planner/tool/command_line.hpp"

int main(int argc, char** argv) {
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  return kvd::planner::run_kvd_plan(arguments, std::cin, std::cout, std::cerr);
}
