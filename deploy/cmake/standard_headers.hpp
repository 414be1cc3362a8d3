// The parts of the standard library that most files read: KvdProject.cmake compiles them once for
// all libraries, KvdTest.cmake once for all test programs. A file still includes what it uses: the
// libraries of the preset `dev`, and clang-tidy, do without this.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>
