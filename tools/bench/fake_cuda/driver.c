// Enough of the CUDA runtime for fake tensors: one GPU on which nothing can be computed.
#include <string.h>
#include <driver_types.h>

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { (void)device; return cudaSuccess; }
cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
  (void)device; (void)device_flags; (void)flags;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) { *version = 13020; return cudaSuccess; }

// torch looks this one up in libcuda.so.1, which is this library's name
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  (void)device;
  *flags = 0;
  *active = 0;
  return 0;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  (void)device;
  memset(p, 0, sizeof *p);
  strcpy(p->name, "fake A100");
  p->major = 8;
  p->multiProcessorCount = 108;
  p->warpSize = 32;
  p->totalGlobalMem = 80ull << 30;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->regsPerMultiprocessor = p->regsPerBlock = 65536;
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerMultiprocessor = 164 << 10;
  p->sharedMemPerBlockOptin = 163 << 10;
  p->l2CacheSize = 40 << 20;
  return cudaSuccess;
}
