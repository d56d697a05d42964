// The flight recorder: the last collectives of this process, for when one goes
// wrong. Always on; a record takes one reading of the clock.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::detail {

// How many collectives are kept.
constexpr size_t kFlightsKept = 1024;

struct FlightRecord {
  // Counts all collectives of the process, from 1; 0: nothing is recorded.
  uint64_t id = 0;
  uint32_t group = 0;
  uint32_t sequence = 0;  // in its group
  const char* collective = "";
  // Of the whole tensor that is gathered or reduced, the same on all ranks; of
  // what this rank sends in an all_to_all.
  int64_t bytes = 0;
  // By the steady clock.
  int64_t began_ns = 0;
  // 0: under way; negative: it failed then.
  int64_t ended_ns = 0;
  std::array<char, 48> cause{};  // the op; cut off where it is longer
};

// A collective that is recorded; cheap to copy.
class Flight {
 public:
  // Begins a record. `collective` lives for ever.
  Flight(
      uint32_t group,
      uint32_t sequence,
      const char* collective,
      int64_t bytes,
      std::string_view cause,
      std::chrono::steady_clock::time_point began);
  // Ends it now. Safe in any thread, and however much was recorded since.
  void end(bool failed) const;

 private:
  uint64_t id_;
};

// Ends a flight with its scope; an exception that ends the scope marks it as
// failed.
class FlightScope {
 public:
  explicit FlightScope(Flight flight);
  ~FlightScope();
  FlightScope(const FlightScope&) = delete;
  FlightScope& operator=(const FlightScope&) = delete;

 private:
  const Flight flight_;
  const int exceptions_;
};

// A number by which records of this process name a new group. `name` is the
// same on all ranks of it; the second of that name gets "(2)" behind it.
uint32_t new_flight_group(
    const std::string& name, const std::vector<int64_t>& ranks);

// The last `count` collectives of this process, a line each, the newest last.
std::string last_flights(size_t count);

// All that are kept, as JSON in the schema of torch's flight recorder.
std::string flight_json();

// What the error of a collective ends with, after which its group is of no more
// use: the last collectives of this rank, and the file to which all of them are
// written. TESSERA_FLIGHT_RECORD names its directory, or is "0": no file. The
// default is a directory of the user in the temporary one.
std::string flight_report(int64_t rank);
// From now on SIGUSR1 writes the file, to the same directory. Does nothing
// where the program has a handler of its own.
void write_flights_on_signal(int64_t rank);

}  // namespace tessera::detail
