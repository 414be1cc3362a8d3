#pragma once

#include <chrono>

namespace kvd::planner {

/// Time in the planner's arithmetic; nanoseconds convert to it implicitly.
using Seconds = std::chrono::duration<double>;

}  // namespace kvd::planner
