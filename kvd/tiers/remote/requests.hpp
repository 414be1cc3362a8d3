#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/tiers/remote/value.hpp"

/// What is asked of the remote tier, and what it answers. The asker chooses the ticket, unique
/// among the requests under way. `patience` is the longest time from the call to the answer of a
/// find or a get; a put may take longer once it is being sent.
namespace kvd::remote {

/// Which of the blocks are there. A hint: a block may be gone the next moment.
struct Find {
  Ticket ticket;
  disk::ClassShape shape;
  std::vector<disk::Digest> digests;
  Nanoseconds patience{0};
};

/// Get a block into memory, a span a layer group. Its time to live begins again.
struct Get {
  Ticket ticket;
  disk::ClassShape shape;
  disk::BlockKey key;
  Groups groups;
  Nanoseconds patience{0};
};

/// Put a block where it is not there yet; else its time to live begins again. The memory must not
/// change until the completion.
struct Put {
  Ticket ticket;
  disk::ClassShape shape;
  disk::BlockKey key;
  ConstGroups groups;
  Nanoseconds patience{0};
};

/// The end of a request. After it the tier touches the memory no more. After a fault no byte of a
/// get may be used.
struct Completion {
  Ticket ticket;
  disk::Fault fault = disk::Fault::kNone;
  std::vector<bool> there;  ///< of a find, by digest; false where its server does not answer
};

/// A server went off or came back.
struct Change {
  std::string server;
  bool on = false;
  /// Off: why, with the remedy. On: why nothing is written there, or Ok.
  Error why{ErrorCode::kOk, {}};
};

/// A server, for a person; numbers since the tier was opened.
struct ServerStatus {
  std::string server;  ///< as configured
  bool on = false;
  Error why{ErrorCode::kOk, {}};  ///< as in Change
  std::uint64_t loads = 0, misses = 0, stores = 0, renewals = 0, finds = 0, errors = 0, offs = 0;
  Bytes in, out;
  Nanoseconds round_trip{0};  ///< of small requests, smoothed; 0: not measured
  std::uint32_t waiting = 0;
};

}  // namespace kvd::remote
