#include "client_lib/llama/driver/record.hpp"

#include <cstring>

namespace kvd_llama {
namespace {

int close_if_open(std::FILE* file) { return file == nullptr ? 0 : std::fclose(file); }

std::FILE* open_file(const std::string& path, const char* mode) {
  return path.empty() ? nullptr : std::fopen(path.c_str(), mode);
}

}  // namespace

RecordWriter::RecordWriter(const std::string& path, std::uint32_t vocabulary)
    : file_(open_file(path, "wb"), close_if_open),
      vocabulary_(vocabulary),
      ok_(path.empty() || file_ != nullptr) {
  RecordHeader header;
  header.vocabulary = vocabulary;
  write(&header, sizeof header);
}

void RecordWriter::append(std::int32_t token, const float* logits) {
  write(&token, sizeof token);
  write(logits, vocabulary_ * sizeof(float));
}

bool RecordWriter::finish() {
  if (file_ != nullptr && std::fflush(file_.get()) != 0) ok_ = false;
  return ok_;
}

void RecordWriter::write(const void* data, std::size_t bytes) {
  if (file_ == nullptr) return;
  if (std::fwrite(data, 1, bytes, file_.get()) != bytes) ok_ = false;
}

RecordReader::RecordReader(const std::string& path) : file_(open_file(path, "rb"), close_if_open) {
  const RecordHeader expected;
  ok_ = file_ != nullptr && std::fread(&header_, sizeof header_, 1, file_.get()) == 1 &&
        std::memcmp(header_.magic, expected.magic, sizeof expected.magic) == 0 &&
        header_.vocabulary > 0;
}

bool RecordReader::next(Step* step) {
  if (!ok_) return false;
  step->logits.resize(header_.vocabulary);
  const std::size_t token = std::fread(&step->token, 1, sizeof step->token, file_.get());
  if (token == 0) return false;
  const std::size_t floats =
      std::fread(step->logits.data(), sizeof(float), step->logits.size(), file_.get());
  torn_ = token != sizeof step->token || floats != step->logits.size();
  return !torn_;
}

}  // namespace kvd_llama
