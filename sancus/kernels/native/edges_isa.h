#define ROWS "edges_rows.h"
#include "each_type.h"
#undef ROWS

#undef REAL
#define REAL float
#define KIND f32
#include "edges_softmax.h"
#undef REAL
#undef KIND
#define REAL double
#define KIND f64
#include "edges_softmax.h"
#undef REAL
#undef KIND
