#pragma once

#include "ipc/vocabulary/units.hpp"

namespace kvd::core {

/// The most that all engines together can make kvd keep besides the pools: names of requests,
/// pieces of copies, held commands, unsent replies, tables. The memory that kvd asks of a machine,
/// a control group or a service manager includes it.
constexpr Bytes kKeptForEngines = kMiB * 256;
/// The part of it that is for incoming and outgoing frames; the rest is for what the Controller
/// keeps.
constexpr Bytes kKeptFrames = kMiB * 96;

}  // namespace kvd::core
