#pragma once

#include <functional>
#include <string>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/ctl/top/screen.hpp"

namespace kvd::ctl::top {

/// Shows the screen in the whole terminal until the user ends it: takes the next overview each
/// `interval`, and answers keys at once. The last line says when the daemon does not answer.
/// Owner:  one thread.
/// Errors: Unsupported when standard output is no terminal, or one of an unknown kind.
Status run(Screen& screen, const std::function<Result<std::string>()>& ask, Nanoseconds interval);

}  // namespace kvd::ctl::top
