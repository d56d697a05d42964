// Sizes, strides and lists of integers as rules read them.
//
// A rule may be asked about a call that ATen has not checked: a tensor may have
// too few dimensions and a list too few numbers. CheckedSizes is a list of
// integers that throws std::out_of_range where an element is read that it does
// not have, so that a rule can be written for the calls that ATen takes.
// Whoever calls the op gets a c10::IndexError that names it.
#pragma once

#include <initializer_list>
#include <utility>

#include "tessera/export.h"
#include "tessera/spec.h"

namespace tessera {

class TESSERA_API CheckedSizes : public Sizes {
 public:
  CheckedSizes() = default;
  CheckedSizes(Sizes sizes) : Sizes(std::move(sizes)) {}
  CheckedSizes(std::initializer_list<int64_t> sizes) : Sizes(sizes) {}
  // `count` times the same number. Throws std::out_of_range if `count` is
  // negative.
  CheckedSizes(int64_t count, int64_t number);

  // These throw std::out_of_range if there is no such element. A negative index
  // is not counted from the end.
  int64_t& operator[](int64_t index) { return begin()[checked(index)]; }
  int64_t operator[](int64_t index) const { return begin()[checked(index)]; }
  int64_t& back() { return from_end(1); }
  int64_t back() const { return from_end(1); }
  // The `count`th element from the end: 1 is the last.
  int64_t& from_end(int64_t count) { return (*this)[length() - count]; }
  int64_t from_end(int64_t count) const { return (*this)[length() - count]; }
  // `count` elements from `first` on.
  CheckedSizes slice(int64_t first, int64_t count) const;
  // All elements but the first or the last `count`.
  CheckedSizes without_first(int64_t count) const {
    return slice(count, length() - count);
  }
  CheckedSizes without_last(int64_t count) const {
    return slice(0, length() - count);
  }
  void pop_back() {
    checked(length() - 1);
    Sizes::pop_back();
  }

  int64_t length() const { return static_cast<int64_t>(size()); }

 private:
  int64_t checked(int64_t index) const {
    if (index < 0 || index >= length()) [[unlikely]] {
      throw_missing(index);
    }
    return index;
  }
  [[noreturn]] void throw_missing(int64_t index) const;
};

}  // namespace tessera
