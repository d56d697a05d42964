// Tessera: distributed tensors for libtorch. The whole public API.
#pragma once

#include "tessera/checkpoint.h"
#include "tessera/debug.h"
#include "tessera/distribute.h"
#include "tessera/dtensor.h"
#include "tessera/embedding.h"
#include "tessera/mask_buffer.h"
#include "tessera/mesh.h"
#include "tessera/module.h"
#include "tessera/placement.h"
#include "tessera/process_group.h"
#include "tessera/rule.h"
#include "tessera/scopes.h"
#include "tessera/shard_math.h"
#include "tessera/sharded.h"
#include "tessera/spec.h"
#include "tessera/world.h"
