// The flight record as files, on an error or a signal.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "comm/flight_recorder.h"

namespace tessera::detail {

namespace {

constexpr size_t kInErrors = 8;
constexpr std::string_view kNoFiles = "0";

// A directory that the program names, "0" for no files on errors, or "".
std::string named_in_environment() {
  const char* directory = std::getenv("TESSERA_FLIGHT_RECORD");
  return directory == nullptr ? "" : directory;
}

// One directory for each user: the records of a later failure take the places
// of these, and no other user's files are written to.
std::string directory_of_user() {
  std::error_code error;
  const auto temporary = std::filesystem::temp_directory_path(error);
  return (error ? "/tmp" : temporary.string()) + "/tessera_flight_" +
         std::to_string(::getuid());
}

bool make_directory_of_user(const std::string& path) {
  struct stat status {};
  ::mkdir(path.c_str(), 0700);
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::getuid();
}

// torch's analyzer reads pickles. This one says: json.loads of the text.
std::string pickled(const std::string& json) {
  std::string out(
      "\x80\x02"
      "cjson\nloads\nX");
  const auto bytes = static_cast<uint32_t>(json.size());
  for (int shift = 0; shift < 32; shift += 8) {
    out += static_cast<char>(bytes >> shift & 0xff);
  }
  return out + json + "\x85R.";
}

// Whoever reads finds a whole file or none.
bool write_whole(const std::string& path, const std::string& text) {
  const auto unfinished = path + ".tmp" + std::to_string(::getpid());
  {
    std::ofstream out(unfinished, std::ios::trunc | std::ios::binary);
    out << text;
    if (!out.flush()) return false;
  }
  return std::rename(unfinished.c_str(), path.c_str()) == 0;
}

struct WrittenFlights {
  std::string path;  // of the JSON
  // A directory that cannot be written is no reason to hide the error that is
  // being reported.
  bool written = false;
};

WrittenFlights write_flights(int64_t rank) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  auto directory = named_in_environment();
  bool made = true;
  if (directory.empty() || directory == kNoFiles) {
    directory = directory_of_user();
    made = make_directory_of_user(directory);
  } else {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
  }
  const auto json = flight_json();
  const auto number = std::to_string(rank);
  auto path = directory + "/tessera_trace_" + number + ".json";
  const bool written =
      made && write_whole(directory + "/trace_rank_" + number, pickled(json)) &&
      write_whole(path, json);
  return {std::move(path), written};
}

// A handler may do next to nothing: it wakes a thread. One that a forked child
// inherits does nothing.
std::atomic<int> wake_pipe = -1;
std::atomic<pid_t> wake_process = -1;

void wake(int) {
  if (::getpid() != wake_process.load()) return;
  const char byte = 1;
  const auto written = ::write(wake_pipe.load(), &byte, 1);
  static_cast<void>(written);
}

void write_whenever_woken(int pipe, int64_t rank) {
  // Signals are for the threads of the program.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  char byte = 0;
  while (::read(pipe, &byte, 1) == 1) write_flights(rank);
}

}  // namespace

std::string flight_report(int64_t rank) {
  std::string text =
      ". The last collectives of this rank:" + last_flights(kInErrors);
  if (named_in_environment() == kNoFiles) return text;
  const auto [path, written] = write_flights(rank);
  return text + "\nMore of them " +
         (written ? "are in " : "could not be written to ") + path;
}

void write_flights_on_signal(int64_t rank) {
  static std::once_flag once;
  std::call_once(once, [rank] {
    struct sigaction before {};
    ::sigaction(SIGUSR1, nullptr, &before);
    if ((before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_DFL) {
      return;
    }
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    wake_pipe = ends[1];
    wake_process = ::getpid();
    std::thread(write_whenever_woken, ends[0], rank).detach();
    struct sigaction action {};
    action.sa_handler = &wake;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGUSR1, &action, nullptr);
  });
}

}  // namespace tessera::detail
