/* Attention for one instruction set, float and double. */

#define TYPED(x) NAME(JOIN(x, SUFFIX))

#define REAL_BITS 32
#define SUFFIX f32
#include "vector.h"
#include "lanes.h"
#include "attend_entries.h"
#include "attend_rows.h"
#include "attend_back.h"
#undef SUFFIX
#undef REAL_BITS

#define REAL_BITS 64
#define SUFFIX f64
#include "vector.h"
#include "lanes.h"
#include "attend_entries.h"
#include "attend_rows.h"
#include "attend_back.h"
#undef SUFFIX
#undef REAL_BITS

#undef TYPED
