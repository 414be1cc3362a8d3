/// Imitates ggml 0.9.7: it has today's version of the backend API, but other structs behind it. It
/// loads a plugin as the real one does. A plugin that refuses it sees no more than this.
#include <dlfcn.h>

extern "C" {

__attribute__((visibility("default"))) const char* ggml_version() { return "0.9.7"; }

/// What ggml_backend_init() of the plugin returned; null too where the file cannot be loaded.
__attribute__((visibility("default"))) void* fake_ggml_load(const char* plugin) {
  void* library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
  auto* init = library == nullptr ? nullptr : dlsym(library, "ggml_backend_init");
  // Volatile, because a tail call would hide from the plugin who called it.
  void* volatile registration = nullptr;
  if (init != nullptr) registration = reinterpret_cast<void* (*)()>(init)();
  return registration;
}
}
