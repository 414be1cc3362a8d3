#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/tiers/kept/record.hpp"

namespace kvd::kept {

/// The file in memory (a memfd) that says what slots hold, for the daemon after this one. A writer
/// that is killed at any instruction leaves each record old, new, or ended: its state word is
/// zeroed before anything else changes, and set after all else is there.
/// Source: FORMAT.md.
/// Owner:  one thread at a time. Nobody else may have the descriptor but who keeps it.
class State {
 public:
  /// Errors: OutOfMemory, Unavailable when out of descriptors.
  [[nodiscard]] static Result<State> create(Bytes slab_bytes);
  /// Opens what an earlier process wrote. Errors: InvalidArgument for another format, or for slabs
  /// of another size.
  [[nodiscard]] static Result<State> open(UniqueFd file, Bytes slab_bytes);
  State(State&& other) noexcept;
  State& operator=(State&&) = delete;
  ~State();

  /// Every record that is whole: where it is, and what it says.
  using Visit = std::function<void(std::uint32_t at, const Record&)>;
  /// Ends the records that are not whole, and returns their number.
  std::uint32_t each(const Visit& visit);
  /// Writes the record down; `state`, `generation` and `sum` are filled in here. Returns where it
  /// is. Errors: OutOfMemory when all are in use.
  [[nodiscard]] Result<std::uint32_t> write(Record record);
  /// Ends the record, as its slot gets other bytes from now on.
  void erase(std::uint32_t at);
  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] const UniqueFd& file() const { return file_; }

  /// Tests: called between any two stores of write() and erase().
  std::function<void()> between_stores;

 private:
  State(UniqueFd file, std::byte* memory) : file_(std::move(file)), memory_(memory) {}
  static Result<State> map(UniqueFd file);
  [[nodiscard]] Header& header() const;
  [[nodiscard]] Record& at(std::uint32_t number) const;
  void pause() const {
    if (between_stores) between_stores();
  }

  UniqueFd file_;
  std::byte* memory_;
  std::vector<std::uint32_t> unused_;  ///< of those below Header::used
  std::uint64_t generation_ = 0;
  std::uint32_t size_ = 0;
};

}  // namespace kvd::kept
