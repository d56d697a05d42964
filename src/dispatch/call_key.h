// The cache's key: the op, the specs of its tensors, every plain argument and
// all global state that may change a row, a shape or a dtype, as a row of
// words.
//
// The only global state of that kind is the default dtype: numbers and integers
// are promoted to it. The rest acts on local calls, which are made anew every
// time (deterministic algorithms, precision of products), above this key
// (autocast, grad mode), or is asked on every call (ImplicitReplication).
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

#include "dispatch/op_info.h"
#include "dispatch/tensor.h"

namespace tessera::detail {

class CallKey {
 public:
  // Reads the arguments of one call. Numbers enter only by kind where the rule
  // ignores them, by value otherwise.
  [[gnu::hot]] CallKey(
      const OpInfo& op, const Rule& rule, c10::ArrayRef<c10::IValue> args);

  // The same key, of an op that takes only tensors and numbers: begun, and
  // given the arguments in their order.
  [[gnu::hot]] CallKey(const OpInfo& op, const Rule& rule);
  [[gnu::hot]] void add(const at::Tensor& tensor);
  [[gnu::hot]] void add(const at::Scalar& number);

  c10::ArrayRef<uint64_t> words() const { return words_; }
  uint64_t hash() const { return hash_; }

  // False if an argument is of a kind that has no words: plan without caching.
  bool cacheable() const { return cacheable_; }
  // Whether a plain tensor other than a scalar is among the arguments.
  bool has_plain_tensor() const { return has_plain_; }
  // Whether a leaf that may lack its hook is among them: see grad_layout.h.
  bool has_new_leaf() const { return has_new_leaf_; }

 private:
  void add_word(uint64_t word) {
    words_.push_back(word);
    hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15ull;
    hash_ ^= hash_ >> 29;
  }
  void add_plain_tensor(const at::Tensor& tensor);
  void add_number(const c10::IValue& value);
  void add_value(const c10::IValue& value);
  void add_list(const c10::IValue& value);

  c10::SmallVector<uint64_t, 24> words_;
  uint64_t hash_ = 0;
  bool ignores_numbers_;
  bool cacheable_ = true;
  bool has_plain_ = false;
  bool has_new_leaf_ = false;
};

}  // namespace tessera::detail
