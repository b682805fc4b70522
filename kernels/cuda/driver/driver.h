// The driver API, and whether there is a driver.
#pragma once
#include <cuda.h>

// 0: a driver is loaded and cuInit succeeded. 1: no libcuda.so.1. Else *result is
// cuInit's answer.
int kr_available(CUresult *result);
