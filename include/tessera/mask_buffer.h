// MaskBuffer: the entries of a result that a rank does not answer for.
//
// Lookups of this library need none, since they write zeros for foreign rows at
// once. It is for programs that look a part of a table up by themselves.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/export.h"

namespace tessera {

// Empty or full. A value: copies share the mask tensor but not the state, so
// that releasing one leaves the others as they are.
class TESSERA_API MaskBuffer {
 public:
  // Keeps `mask`, a bool tensor that is true where an entry is masked. Throws
  // c10::Error if there is a mask already, c10::TypeError unless it is bool.
  void materialize_mask(const at::Tensor& mask);

  // Forgets the mask. Throws c10::Error if there is none.
  void release_mask();

  // Writes zeros into `tensor`: into the masked entries, or into whole masked
  // rows where it has one dimension more than the mask. Throws c10::Error if
  // there is no mask, c10::ValueError if the shapes do not fit.
  void apply_mask(at::Tensor& tensor) const;

  bool is_materialized() const { return mask_.defined(); }

 private:
  at::Tensor mask_;
};

}  // namespace tessera
