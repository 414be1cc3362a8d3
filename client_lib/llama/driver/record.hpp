#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace kvd_llama {

/// A record file: the header, then for every step the greedy token (int32) and the logits it was
/// chosen from (float32 x vocabulary), native byte order. Steps of several contexts are interleaved
/// in the order in which they were computed.
struct RecordHeader {
  char magic[8] = {'K', 'V', 'L', 'O', 'G', 'I', 'T', '1'};
  std::uint32_t vocabulary = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(RecordHeader) == 16);

struct Step {
  std::int32_t token = 0;
  std::vector<float> logits;
};

/// Writes a record; an unwritable file is reported by ok(), once, at the end.
class RecordWriter {
 public:
  /// An empty path writes nothing and is always ok.
  RecordWriter(const std::string& path, std::uint32_t vocabulary);
  void append(std::int32_t token, const float* logits);
  /// Flushes; false: some byte did not reach the file.
  bool finish();

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::uint32_t vocabulary_;
  bool ok_ = true;

  void write(const void* data, std::size_t bytes);
};

/// Reads a record step by step.
class RecordReader {
 public:
  explicit RecordReader(const std::string& path);
  /// False: no such file, or not a record.
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] std::uint32_t vocabulary() const { return header_.vocabulary; }
  /// False: the record ends here (a torn last step counts as its end, see torn()).
  bool next(Step* step);
  [[nodiscard]] bool torn() const { return torn_; }

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  RecordHeader header_;
  bool ok_ = false;
  bool torn_ = false;
};

}  // namespace kvd_llama
