#pragma once

#include <link.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvd::llama {

/// The functions of a loaded ELF file by name, from the table that `strip` removes: what dlsym does
/// not know of a program that exports nothing.
/// Owner:   not shared between threads
/// Errors:  a file without the table, or a damaged one, has no symbols
class SymbolTable {
 public:
  /// Reads the table of `file`, which the process has mapped at `base` (0: where it was linked).
  void load(const std::string& file, std::uintptr_t base);
  [[nodiscard]] bool loaded() const { return loaded_; }

  /// The address of the function `name`; null: there is none.
  [[nodiscard]] void* find(const char* name) const;

 private:
  bool loaded_ = false;
  std::uintptr_t base_ = 0;
  std::vector<Elf64_Sym> symbols_;
  std::string names_;
};

}  // namespace kvd::llama
