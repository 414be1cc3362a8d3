#include "client_lib/llama/plugin/engine_symbols.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <string>

#include "client_lib/llama/plugin/symbol_table.hpp"

namespace kvd::llama {
namespace {

/// The module of the engine that called us: open for dlsym, and as the file it was loaded from.
class EngineModule {
 public:
  explicit EngineModule(const void* address) {
    Dl_info info{};
    void* extra = nullptr;
    if (dladdr1(address, &info, &extra, RTLD_DL_LINKMAP) != 0 && extra != nullptr) {
      const auto* map = static_cast<const link_map*>(extra);
      base_ = map->l_addr;
      // The program itself has no name in the loader's list.
      is_program_ = map->l_name == nullptr || map->l_name[0] == '\0';
      if (!is_program_) file_ = map->l_name;
    }
    // RTLD_NOLOAD, so nothing new is ever loaded.
    handle_ = dlopen(is_program_ ? nullptr : file_.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  }
  ~EngineModule() {
    if (handle_ != nullptr) dlclose(handle_);  // the engine holds its own reference
  }
  EngineModule(const EngineModule&) = delete;
  EngineModule& operator=(const EngineModule&) = delete;

  template <class Function>
  void find(const char* name, Function* function) {
    void* address = handle_ == nullptr ? nullptr : dlsym(handle_, name);
    if (address == nullptr) address = table().find(name);
    *function = reinterpret_cast<Function>(address);
  }

 private:
  /// Read only where dlsym fails: the file may be large.
  const SymbolTable& table() {
    if (!table_.loaded()) table_.load(file_, base_);
    return table_;
  }

  std::string file_ = "/proc/self/exe";
  bool is_program_ = true;
  std::uintptr_t base_ = 0;
  void* handle_ = nullptr;
  SymbolTable table_;
};

}  // namespace

EngineSymbols find_engine_symbols(const void* caller) {
  EngineModule module(caller);
  EngineSymbols symbols;
  module.find("ggml_version", &symbols.version);
  module.find("ggml_nbytes", &symbols.tensor_bytes);
  module.find("ggml_graph_n_nodes", &symbols.graph_size);
  module.find("ggml_graph_node", &symbols.graph_node);
  module.find("ggml_backend_buffer_init", &symbols.buffer_init);
  module.find("ggml_backend_dev_by_type", &symbols.device_by_type);
  module.find("ggml_backend_buft_alloc_buffer_n", &symbols.allocate_list);
  return symbols;
}

}  // namespace kvd::llama
