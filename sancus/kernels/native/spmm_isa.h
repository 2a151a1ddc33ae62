#define ROWS "spmm_rows.h"
#include "each_type.h"
#undef ROWS
