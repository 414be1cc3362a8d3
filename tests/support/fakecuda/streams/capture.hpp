#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "tests/support/fakecuda/streams/stream.hpp"

/// The result of a capture. Its nodes are counted and not kept, as nothing here launches a graph.
struct CUgraph_st {
  std::size_t nodes = 0;
};

namespace fakecuda {

/// Streams whose work goes into a graph instead of being done, and what no thread may do meanwhile.
/// Source: cuda.h on cuStreamBeginCapture and cuThreadExchangeStreamCaptureMode; that
///         cuCtxSynchronize ends a capture whatever its mode and thread: measured,
///         rocm-systems#4508 and NVIDIA's answer in TensorRT#2888. A refused call has ended the
///         captures in question. Not thread-safe: driver().mutex.
class Captures {
 public:
  CUresult begin(const std::shared_ptr<CUstream_st>& stream, CUstreamCaptureMode mode);
  /// Returns the graph, or null with the error. The stream no longer captures, unless the thread
  /// was wrong.
  CUresult end(const CUstream_st* stream, std::unique_ptr<CUgraph_st>& graph);
  CUstreamCaptureStatus status(const CUstream_st* stream) const;

  /// Takes a piece of work into the graph if the stream is being captured.
  bool take(const CUstream_st* stream);
  /// 901 where the stream's capture has been ended by an error.
  CUresult check(const CUstream_st* stream) const;
  /// Returns error 900, and ends the capture, if this stream is being captured: its work has no
  /// time of its own.
  CUresult refuse_for(const CUstream_st* stream);
  /// 906 for the legacy stream while a blocking stream of the context is being captured.
  CUresult refuse_legacy(CUcontext context);
  /// The same as a question, which does not end the capture.
  bool blocks_legacy(CUcontext context) const;
  /// 900 while any stream of the context is being captured.
  CUresult refuse_in(CUcontext context);
  /// 900 for a call that the calling thread's mode forbids now.
  CUresult refuse_unsafe();
  void forget(CUcontext context);

 private:
  struct Capture {
    std::shared_ptr<CUstream_st> stream;
    CUstreamCaptureMode mode;
    std::thread::id by;
    std::size_t nodes = 0;
    bool ended = false;  // by an error
  };
  using Map = std::map<const CUstream_st*, Capture>;
  template <class Meant>
  CUresult refuse(CUresult code, Meant meant);

  Map captures_;
};

/// Whether cuda.h calls the function potentially unsafe during captures, or says nothing about it.
bool is_unsafe_in_capture(const std::string& entry);
/// The calling thread's mode.
CUstreamCaptureMode& thread_capture_mode();

}  // namespace fakecuda
