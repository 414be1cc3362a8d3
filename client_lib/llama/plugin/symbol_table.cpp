#include "client_lib/llama/plugin/symbol_table.hpp"

#include <cstring>
#include <fstream>

namespace kvd::llama {
namespace {

constexpr std::uint64_t kMostBytes = 1ULL << 30U;  // larger tables are taken for damaged

/// `count` records at `offset` of the file; empty where they are not all there.
template <class Records>
Records read_at(std::ifstream& file, std::uint64_t offset, std::uint64_t count) {
  constexpr std::uint64_t kRecord = sizeof(typename Records::value_type);
  if (count > kMostBytes / kRecord) return {};
  Records records;
  records.resize(count);
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(records.data()), static_cast<std::streamsize>(count * kRecord));
  if (!file) return {};
  return records;
}

std::vector<Elf64_Shdr> read_sections(std::ifstream& file) {
  const auto headers = read_at<std::vector<Elf64_Ehdr>>(file, 0, 1);
  if (headers.empty() || std::memcmp(headers[0].e_ident, ELFMAG, SELFMAG) != 0 ||
      headers[0].e_ident[EI_CLASS] != ELFCLASS64 || headers[0].e_shentsize != sizeof(Elf64_Shdr)) {
    return {};
  }
  return read_at<std::vector<Elf64_Shdr>>(file, headers[0].e_shoff, headers[0].e_shnum);
}

}  // namespace

void SymbolTable::load(const std::string& path, std::uintptr_t base) {
  loaded_ = true;
  base_ = base;
  std::ifstream file(path, std::ios::binary);
  const auto sections = read_sections(file);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const Elf64_Shdr& names = sections[section.sh_link];
    symbols_ = read_at<std::vector<Elf64_Sym>>(file, section.sh_offset,
                                               section.sh_size / sizeof(Elf64_Sym));
    names_ = read_at<std::string>(file, names.sh_offset, names.sh_size);
  }
}

void* SymbolTable::find(const char* name) const {
  const std::size_t length = std::strlen(name) + 1;  // with the zero behind it
  for (const Elf64_Sym& symbol : symbols_) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF) continue;
    if (symbol.st_name >= names_.size() || names_.size() - symbol.st_name < length) continue;
    if (names_.compare(symbol.st_name, length, name, length) != 0) continue;
    return reinterpret_cast<void*>(base_ + symbol.st_value);
  }
  return nullptr;
}

}  // namespace kvd::llama
