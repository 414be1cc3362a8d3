#include "kvd/tiers/kept/state.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/errno_words.hpp"
#include "kvd/tiers/disk/files/checksum.hpp"

namespace kvd::kept {

static_assert(std::endian::native == std::endian::little);

namespace {

/// After the highest number it would write 0, which means none. No kvd ever gets this far.
constexpr std::uint64_t kGenerations = std::uint64_t{1} << 63;
constexpr std::size_t kFileBytes = kHeaderBytes + std::size_t{kRecords} * sizeof(Record);

Error bad(const std::string& what) { return make_error(ErrorCode::kInvalidArgument, what); }

template <class T>
std::uint32_t sum_of(T value) {
  return disk::crc32c(std::as_bytes(std::span(&value, 1)));
}

std::uint32_t sum_of_header(Header header) {
  header.sum = 0;
  header.used = 0;
  return sum_of(header);
}

std::uint32_t sum_of_record(Record record) {
  record.state = 0;
  record.sum = 0;
  return sum_of(record);
}

/// No later store moves before it, and no earlier store moves after it.
void store(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_seq_cst);
}

}  // namespace

Result<State> State::map(UniqueFd file) {
  void* memory = ::mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        file.get(), 0);
  if (memory == MAP_FAILED) {
    return make_error(ErrorCode::kOutOfMemory,
                      std::string("cannot map what is kept of blocks: ") + std::strerror(errno));
  }
  State state(std::move(file), static_cast<std::byte*>(memory));
  ::madvise(memory, kFileBytes, MADV_DONTFORK);
  ::madvise(memory, kFileBytes, MADV_DONTDUMP);
  return state;
}

Result<State> State::create(Bytes slab_bytes) {
  UniqueFd file(::memfd_create("kvd-state", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) {
    return make_error(ErrorCode::kUnavailable,
                      std::string("cannot create a memfd: ") + std::strerror(errno));
  }
  if (::ftruncate(file.get(), static_cast<off_t>(kFileBytes)) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return make_error(ErrorCode::kOutOfMemory, "cannot size a memfd: " + errno_words(errno));
  }
  KVD_ASSIGN_OR_RETURN(State state, map(std::move(file)));
  Header header;
  header.record_bytes = sizeof(Record);
  header.slab_bytes = static_cast<std::uint64_t>(slab_bytes.value);
  header.sum = sum_of_header(header);
  state.header() = header;
  return state;
}

Result<State> State::open(UniqueFd file, Bytes slab_bytes) {
  struct stat facts {};
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  const bool fixed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
  if (!fixed || ::fstat(file.get(), &facts) != 0 ||
      facts.st_size != static_cast<off_t>(kFileBytes)) {
    return bad("it is not a file of records, or one of another version");
  }
  KVD_ASSIGN_OR_RETURN(State state, map(std::move(file)));
  const Header header = state.header();
  if (header.magic != kMagic || header.version != kVersion ||
      header.record_bytes != sizeof(Record) || header.records != kRecords) {
    return bad("its records are of another version");
  }
  if (header.sum != sum_of_header(header) || header.used > kRecords) return bad("it is damaged");
  if (header.slab_bytes != static_cast<std::uint64_t>(slab_bytes.value)) {
    return bad("pool.slab was " + std::to_string(header.slab_bytes) + " bytes, and is " +
               std::to_string(slab_bytes.value));
  }
  return state;
}

State::State(State&& other) noexcept
    : between_stores(std::move(other.between_stores)),
      file_(std::move(other.file_)),
      memory_(std::exchange(other.memory_, nullptr)),
      unused_(std::move(other.unused_)),
      generation_(other.generation_),
      size_(other.size_) {}

State::~State() {
  if (memory_ != nullptr) ::munmap(memory_, kFileBytes);
}

Header& State::header() const { return *reinterpret_cast<Header*>(memory_); }

Record& State::at(std::uint32_t number) const {
  KVD_CHECK(number < kRecords, "no such record");
  return reinterpret_cast<Record*>(memory_ + kHeaderBytes)[number];
}

std::uint32_t State::each(const Visit& visit) {
  std::uint32_t torn = 0;
  unused_.clear();
  size_ = 0;
  const auto used = static_cast<std::uint32_t>(header().used);
  for (std::uint32_t number = 0; number < used; ++number) {
    const Record record = at(number);
    // Stops at a record that was never written: `used` is under no sum, and reading holes fills
    // them.
    if (record.generation == 0) {
      store(header().used, number);
      break;
    }
    const bool possible = record.generation < kGenerations;
    if (possible) generation_ = std::max(generation_, record.generation);
    const bool whole = possible && record.state != 0 && record.state == record.generation &&
                       record.sum == sum_of_record(record);
    if (whole) {
      ++size_;
      visit(number, record);
      continue;
    }
    if (record.state != 0) ++torn;
    store(at(number).state, 0);
    unused_.push_back(number);
  }
  return torn;
}

Result<std::uint32_t> State::write(Record record) {
  const bool again = !unused_.empty();
  const auto number = again ? unused_.back() : static_cast<std::uint32_t>(header().used);
  if (number >= kRecords) return make_error(ErrorCode::kOutOfMemory, "all records are in use");
  record.generation = ++generation_;
  record.state = 0;
  record.sum = sum_of_record(record);
  store(at(number).state, 0);
  pause();
  if (again) {
    unused_.pop_back();
  } else {
    store(header().used, std::uint64_t{number} + 1);
  }
  pause();
  std::memcpy(&at(number).generation, &record.generation, sizeof record - sizeof record.state);
  pause();
  store(at(number).state, record.generation);
  pause();
  ++size_;
  return number;
}

void State::erase(std::uint32_t number) {
  KVD_CHECK(at(number).state != 0, "a record ends that is not there");
  store(at(number).state, 0);
  pause();
  unused_.push_back(number);
  --size_;
}

}  // namespace kvd::kept
