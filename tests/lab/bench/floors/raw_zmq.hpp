#pragma once

#include <zmq.h>

#include <cstddef>
#include <string>
#include <thread>

namespace kvd::bench {

/// Passes frames of `size` bytes from a DEALER to a ROUTER thread and back by libzmq alone, with no
/// code of ours in between.
class RawZmqEcho {
 public:
  RawZmqEcho(const std::string& endpoint, std::size_t size) : size_(size) {
    zmq_bind(router_, endpoint.c_str());
    zmq_connect(dealer_, endpoint.c_str());
    echo_ = std::thread([this] { echo(); });
  }
  ~RawZmqEcho() {
    zmq_ctx_shutdown(server_);  // ends the thread's zmq_recv
    echo_.join();
    zmq_close(router_);
    zmq_close(dealer_);
    zmq_ctx_term(server_);
    zmq_ctx_term(client_);
  }
  RawZmqEcho(const RawZmqEcho&) = delete;
  RawZmqEcho& operator=(const RawZmqEcho&) = delete;

  void round_trip() {
    char frame[256] = {};
    zmq_send(dealer_, frame, size_, 0);
    zmq_recv(dealer_, frame, sizeof frame, 0);
  }

 private:
  void echo() {
    char id[256], frame[256];
    while (true) {
      const int id_size = zmq_recv(router_, id, sizeof id, 0);
      if (id_size < 0) return;
      const int size = zmq_recv(router_, frame, sizeof frame, 0);
      zmq_send(router_, id, static_cast<std::size_t>(id_size), ZMQ_SNDMORE);
      zmq_send(router_, frame, static_cast<std::size_t>(size), 0);
    }
  }

  std::size_t size_;
  void* server_ = zmq_ctx_new();
  void* client_ = zmq_ctx_new();
  void* router_ = zmq_socket(server_, ZMQ_ROUTER);
  void* dealer_ = zmq_socket(client_, ZMQ_DEALER);
  std::thread echo_;
};

}  // namespace kvd::bench
