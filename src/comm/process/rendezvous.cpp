#include "comm/process/rendezvous.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <random>
#include <sstream>
#include <thread>

#include "comm/transport/transport.h"

namespace tessera::detail {

namespace {

using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// How often those who wait look whether another attempt has begun.
constexpr milliseconds kLook{50};
constexpr milliseconds kLongestPause{16};

std::string random_name() {
  std::random_device random;
  std::ostringstream name;
  name << std::hex << random() << random() << random();
  return name.str();
}

void put(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

std::string get(c10d::Store& store, const std::string& key) {
  const auto bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

// Whether all the keys were there within the time. Asks again and again: a wait
// that ends without a key leaves some stores out of step.
bool wait_for(
    c10d::Store& store,
    const std::vector<std::string>& keys,
    milliseconds time) {
  const auto until = from_now(time);
  for (milliseconds pause(1);; pause = std::min(2 * pause, kLongestPause)) {
    if (store.check(keys)) return true;
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(pause);
  }
}

std::string hello_key(size_t index) { return "hello/" + std::to_string(index); }

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const auto& text : texts) {
    all += std::to_string(text.size()) + " " + text;
  }
  return all;
}

std::vector<std::string> split(const std::string& all) {
  std::vector<std::string> texts;
  std::istringstream in(all);
  size_t length = 0;
  // Whoever writes to the store may have written anything.
  while (in >> length && length < all.size()) {
    in.get();
    std::string text(length, '\0');
    in.read(text.data(), static_cast<std::streamsize>(length));
    texts.push_back(std::move(text));
  }
  return texts;
}

// A rank's hello: the name of its attempt, and its text.
struct Hello {
  std::string attempt;
  std::string text;
};

Hello read_hello(c10d::Store& store, size_t index) {
  const auto all = get(store, hello_key(index));
  const size_t space = all.find(' ');
  return {all.substr(0, space), all.substr(space + 1)};
}

std::string answer_key(const std::string& attempt) {
  return "answer/" + attempt;
}

std::string confirm_key(
    const std::string& meeting, const std::string& attempt) {
  return "confirm/" + meeting + "/" + attempt;
}

std::string begin_key(const std::string& meeting) { return "begin/" + meeting; }

// The first rank: answers every hello that it has not seen, until all who said
// one have confirmed the answer.
Meeting lead(
    c10d::Store& store,
    const std::vector<int64_t>& ranks,
    const std::string& text,
    Deadline until) {
  Meeting meeting;
  meeting.name = random_name();
  put(store, hello_key(0), meeting.name + " " + text);
  std::vector<Hello> hellos(ranks.size());
  hellos[0].text = text;
  std::vector<bool> here(ranks.size(), false);
  here[0] = true;
  for (;;) {
    // Those who have not said hello; if there is none, who has not confirmed.
    std::vector<std::string> hello_keys;
    std::vector<std::string> confirm_keys;
    for (size_t i = 1; i < ranks.size(); ++i) {
      if (hellos[i].attempt.empty()) {
        hello_keys.push_back(hello_key(i));
      } else if (!here[i]) {
        confirm_keys.push_back(confirm_key(meeting.name, hellos[i].attempt));
      }
    }
    const auto& keys = hello_keys.empty() ? confirm_keys : hello_keys;
    if (keys.empty()) break;
    const bool late = time_left(until) <= milliseconds(0);
    wait_for(store, keys, std::min(time_left(until), kLook));
    for (size_t i = 1; i < ranks.size(); ++i) {
      if (!store.check({hello_key(i)})) continue;
      auto hello = read_hello(store, i);
      if (hello.attempt != hellos[i].attempt) {
        put(store, answer_key(hello.attempt), meeting.name);
        hellos[i] = std::move(hello);
      }
      here[i] = store.check({confirm_key(meeting.name, hellos[i].attempt)});
    }
    if (late) break;
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!here[i]) meeting.missing.push_back(ranks[i]);
  }
  if (!meeting.missing.empty()) return meeting;
  std::vector<std::string> accepted;
  for (const auto& hello : hellos) {
    accepted.push_back(hello.attempt);
    accepted.push_back(hello.text);
    meeting.texts.push_back(hello.text);
  }
  put(store, begin_key(meeting.name), joined(accepted));
  // Answers stay: a rank may be about to read its own.
  for (size_t i = 0; i < ranks.size(); ++i) {
    store.deleteKey(hello_key(i));
    if (i > 0) store.deleteKey(confirm_key(meeting.name, hellos[i].attempt));
  }
  return meeting;
}

// The others: say hello, confirm the answer, and wait for the beginning.
Meeting follow(
    c10d::Store& store,
    const std::vector<int64_t>& ranks,
    size_t me,
    const std::string& text,
    Deadline until) {
  Meeting meeting;
  const auto attempt = random_name();
  const auto say_hello = [&] {
    put(store, hello_key(me), attempt + " " + text);
  };
  say_hello();
  while (time_left(until) > milliseconds(0)) {
    const auto key =
        meeting.name.empty() ? answer_key(attempt) : begin_key(meeting.name);
    const bool came = wait_for(store, {key}, std::min(time_left(until), kLook));
    if (came && !meeting.name.empty()) {
      const auto accepted = split(get(store, key));
      TORCH_CHECK(
          accepted.size() == 2 * ranks.size(),
          "what rank ",
          ranks[0],
          " says of the meeting cannot be read");
      TORCH_CHECK(
          accepted[2 * me] == attempt,
          "another process has come as rank ",
          ranks[me]);
      for (size_t i = 1; i < accepted.size(); i += 2) {
        meeting.texts.push_back(accepted[i]);
      }
      return meeting;
    }
    if (!came) say_hello();
    // The first rank may have begun again meanwhile.
    if (came || (!meeting.name.empty() && store.check({answer_key(attempt)}))) {
      const auto answer = get(store, answer_key(attempt));
      if (answer != meeting.name) {
        meeting.name = answer;
        put(store, confirm_key(meeting.name, attempt), "1");
      }
    }
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i != me && !store.check({hello_key(i)})) {
      meeting.missing.push_back(ranks[i]);
    }
  }
  if (meeting.missing.empty()) meeting.missing.push_back(ranks[0]);
  return meeting;
}

}  // namespace

std::string name_ranks(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

Meeting meet(
    const StorePtr& store,
    const std::vector<int64_t>& ranks,
    size_t me,
    const std::string& text,
    milliseconds timeout) {
  const auto until = from_now(timeout);
  auto meeting = me == 0 ? lead(*store, ranks, text, until)
                         : follow(*store, ranks, me, text, until);
  if (meeting.missing.empty()) {
    meeting.store = c10::make_intrusive<c10d::PrefixStore>(meeting.name, store);
  }
  return meeting;
}

std::vector<std::string> tell_all(
    const Meeting& meeting,
    const std::string& name,
    size_t me,
    const std::string& text,
    milliseconds timeout) {
  c10d::Store& store = *meeting.store;
  const auto key = [&](size_t i) { return name + "/" + std::to_string(i); };
  put(store, key(me), text);
  std::vector<std::string> texts;
  const auto until = from_now(timeout);
  for (size_t i = 0; i < meeting.texts.size(); ++i) {
    texts.push_back(i == me ? text : hear(store, key(i), time_left(until)));
  }
  return texts;
}

std::string hear(
    c10d::Store& store, const std::string& key, milliseconds timeout) {
  TORCH_CHECK(wait_for(store, {key}, timeout), "a rank went silent");
  return get(store, key);
}

}  // namespace tessera::detail
