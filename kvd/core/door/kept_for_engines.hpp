#pragma once

#include "ipc/vocabulary/units.hpp"

namespace kvd::core {

/// The most that all engines together can make kvd keep beside the pools: names of requests, pieces
/// of copies, held commands, unsent replies, tables. What is kept for them is bounded by it, and
/// the memory that kvd asks of a machine, a control group or a service manager has room for it.
constexpr Bytes kKeptForEngines = kMiB * 256;
/// The part of it for frames on their way in and out; the rest is for what the Controller keeps.
constexpr Bytes kKeptFrames = kMiB * 96;

}  // namespace kvd::core
