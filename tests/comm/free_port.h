// A port that nobody listens on.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace tessera::testing {

// Given by the kernel, which does not give it again soon.
inline uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(fd, raw, length), 0);
  EXPECT_EQ(getsockname(fd, raw, &length), 0);
  close(fd);
  return ntohs(address.sin_port);
}

}  // namespace tessera::testing
