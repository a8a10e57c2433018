// A CUDA runtime without a device. Device memory is memory of the host that nobody has touched, with
// a limit; kernels do nothing and are counted; copies from and to the host are made.
//
// The environment describes the device:
//   NULL_GPU_COUNT=2          devices (1)
//   NULL_GPU_GB=24            memory of each in GB of 1e9 bytes, as ablate prints it (85.0, an H100's)
//   NULL_GPU_FAULT=214        every call that could report it answers with this cudaError_t
//   NULL_GPU_FAULT=719@50     ... from the process's 50th launch on
//   NULL_GPU_FAULTY=GPU-1     ... on the devices whose names in CUDA_VISIBLE_DEVICES begin so
//   NULL_GPU_TRACE=1          each wait and each copy is named on standard error
//
// build.py compiles it; whatever else torch asks of libcudart, it answers with 0 (see stand_ins.py).

#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
// Headers rename these to versions of a later ABI; torch asks for the plain names.
#undef cudaGetDeviceProperties
#undef cudaStreamGetCaptureInfo

// --- What is counted ------------------------------------------------------------------------------

enum counter {
    LAUNCHES,
    PRODUCTS, // of matrices, by cuBLAS
    TO_DEVICE_PAGEABLE,
    TO_DEVICE_PINNED,
    TO_HOST_PAGEABLE,
    TO_HOST_PINNED,
    WITHIN_DEVICE,
    FILLS,
    STREAM_WAITS,
    EVENT_WAITS,
    DEVICE_WAITS,
    ALLOCATIONS,
    COUNTERS
};
static const char *const COUNTER_NAMES[COUNTERS] = {
    "launches",       "products",     "to device, pageable", "to device, pinned",
    "to host, pageable", "to host, pinned", "within device",  "fills",
    "stream waits",   "event waits",  "device waits",        "allocations",
};
static long counts[COUNTERS];

static void count(enum counter counter) {
    __sync_fetch_and_add(&counts[counter], 1);
    if (getenv("NULL_GPU_TRACE") && counter > PRODUCTS)
        fprintf(stderr, "[null GPU] %s\n", COUNTER_NAMES[counter]);
}

// For Python (counters.py) and for the stand-in of cuBLAS.
int null_gpu_counters(void) { return COUNTERS; }
const char *null_gpu_name(int counter) { return COUNTER_NAMES[counter]; }
long null_gpu_count(int counter) { return counts[counter]; }
void null_gpu_reset(void) { memset(counts, 0, sizeof counts); }
void null_gpu_launch(void) { count(LAUNCHES); }
void null_gpu_product(void) { count(PRODUCTS); }

// --- Devices and errors ---------------------------------------------------------------------------

#define MOST_DEVICES 16
#define MODEL "NVIDIA H100 80GB HBM3"
#define CONTEXT_BYTES 500000000ull // that a process takes beside its allocations

static __thread int device;
static __thread cudaError_t last_error;

static cudaError_t failed(cudaError_t error) {
    last_error = error;
    return error;
}

static int number_of_devices(void) {
    const char *number = getenv("NULL_GPU_COUNT");
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int devices = number ? atoi(number) : 1;
    if (!visible)
        return devices;
    if (!*visible || !strcmp(visible, "-1"))
        return 0;
    int named = 1;
    for (; *visible; visible++)
        named += *visible == ',';
    return named < devices ? named : devices;
}

static unsigned long long memory_bytes(void) {
    const char *gigabytes = getenv("NULL_GPU_GB");
    return (unsigned long long)((gigabytes ? atof(gigabytes) : 85.0) * 1e9);
}

// The error of a device that has one by now, else cudaSuccess.
static cudaError_t fault(void) {
    const char *text = getenv("NULL_GPU_FAULT");
    if (!text)
        return cudaSuccess;
    const char *faulty = getenv("NULL_GPU_FAULTY");
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (faulty && !(visible && !strncmp(visible, faulty, strlen(faulty))))
        return cudaSuccess;
    const char *launches = strchr(text, '@');
    if (launches && counts[LAUNCHES] < atol(launches + 1))
        return cudaSuccess;
    return (cudaError_t)atoi(text);
}

static cudaError_t status(void) {
    cudaError_t error = fault();
    return error ? failed(error) : cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *number) {
    *number = number_of_devices();
    if (!*number || fault() == cudaErrorNoDevice) {
        *number = 0;
        return failed(cudaErrorNoDevice);
    }
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *number) {
    *number = device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int number) {
    if (number >= number_of_devices())
        return failed(cudaErrorInvalidDevice);
    device = number;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

// As cudaGetErrorString of CUDA 13 words them.
const char *cudaGetErrorString(cudaError_t error) {
    switch ((int)error) {
    case 0: return "no error";
    case 2: return "out of memory";
    case 3: return "initialization error";
    case 46: return "CUDA-capable device(s) is/are busy or unavailable";
    case 100: return "no CUDA-capable device is detected";
    case 101: return "invalid device ordinal";
    case 214: return "uncorrectable ECC error encountered";
    case 700: return "an illegal memory access was encountered";
    case 719: return "unspecified launch failure";
    case 999: return "unknown error";
    }
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t error) { return error ? "cudaError" : "cudaSuccess"; }

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// Those of an H100.
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int number) {
    struct cudaDeviceProp h100 = {
        .name = MODEL,
        .totalGlobalMem = memory_bytes(),
        .sharedMemPerBlock = 49152,
        .regsPerBlock = 65536,
        .warpSize = 32,
        .memPitch = 2147483647,
        .maxThreadsPerBlock = 1024,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .totalConstMem = 65536,
        .major = 9,
        .minor = 0,
        .textureAlignment = 512,
        .multiProcessorCount = 132,
        .concurrentKernels = 1,
        .asyncEngineCount = 3,
        .unifiedAddressing = 1,
        .memoryBusWidth = 5120,
        .l2CacheSize = 52428800,
        .maxThreadsPerMultiProcessor = 2048,
        .sharedMemPerMultiprocessor = 233472,
        .cooperativeLaunch = 1,
        .sharedMemPerBlockOptin = 232448,
        .maxBlocksPerMultiProcessor = 32,
    };
    *properties = h100;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int number) {
    struct cudaDeviceProp h100;
    cudaGetDeviceProperties(&h100, number);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = h100.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: *value = h100.maxThreadsDim[0]; break;
    case cudaDevAttrMaxBlockDimY: *value = h100.maxThreadsDim[1]; break;
    case cudaDevAttrMaxBlockDimZ: *value = h100.maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *value = h100.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = h100.maxGridSize[1]; break;
    case cudaDevAttrMaxGridDimZ: *value = h100.maxGridSize[2]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)h100.sharedMemPerBlock; break;
    case cudaDevAttrWarpSize: *value = h100.warpSize; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = h100.regsPerBlock; break;
    case cudaDevAttrMultiProcessorCount: *value = h100.multiProcessorCount; break;
    case cudaDevAttrL2CacheSize: *value = h100.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = h100.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = h100.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = h100.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)h100.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = h100.regsPerBlock; break;
    case cudaDevAttrCooperativeLaunch: *value = h100.cooperativeLaunch; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)h100.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = h100.maxBlocksPerMultiProcessor; break;
    default: *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int number) {
    snprintf(text, length, "0000:%02x:00.0", number + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int from, int to) {
    *can = 1;
    return cudaSuccess;
}

// --- Memory ---------------------------------------------------------------------------------------

enum kind { PAGEABLE, PINNED, ON_DEVICE };
struct range {
    char *start;
    size_t bytes;
    enum kind kind;
    int device;
};
#define MOST_RANGES (1 << 16)
#define BEYOND (2 << 20) // bytes behind a range that kernels' prefetches may read
#define SMALL (1 << 16)  // bytes up to which copies and fills within the device are made
static struct range ranges[MOST_RANGES];
static int number_of_ranges;
static size_t used_bytes[MOST_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// The index of the range that holds the address, -1 for none. The caller has the lock.
static int find_range(const void *address) {
    for (int i = number_of_ranges - 1; i >= 0; i--)
        if ((char *)address >= ranges[i].start && (char *)address < ranges[i].start + ranges[i].bytes)
            return i;
    return -1;
}

static struct range range_of(const void *address) {
    pthread_mutex_lock(&lock);
    int i = find_range(address);
    struct range range = {0, 0, PAGEABLE, 0};
    if (i >= 0)
        range = ranges[i];
    pthread_mutex_unlock(&lock);
    return range;
}

static cudaError_t take(void **address, size_t bytes, enum kind kind) {
    cudaError_t result = cudaErrorMemoryAllocation;
    pthread_mutex_lock(&lock);
    int fits = kind != ON_DEVICE || used_bytes[device] + bytes + CONTEXT_BYTES <= memory_bytes();
    if (fits && number_of_ranges < MOST_RANGES) {
        char *start = mmap(0, bytes + BEYOND, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start != MAP_FAILED) {
            ranges[number_of_ranges++] = (struct range){start, bytes, kind, device};
            if (kind == ON_DEVICE)
                used_bytes[device] += bytes;
            *address = start;
            result = cudaSuccess;
        }
    }
    pthread_mutex_unlock(&lock);
    return result ? failed(result) : cudaSuccess;
}

static cudaError_t give_back(void *address) {
    pthread_mutex_lock(&lock);
    int i = find_range(address);
    if (i >= 0) {
        munmap(ranges[i].start, ranges[i].bytes + BEYOND);
        if (ranges[i].kind == ON_DEVICE)
            used_bytes[ranges[i].device] -= ranges[i].bytes;
        ranges[i] = ranges[--number_of_ranges];
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **address, size_t bytes) {
    count(ALLOCATIONS);
    if (!number_of_devices())
        return failed(cudaErrorNoDevice);
    if (fault())
        return status();
    return take(address, bytes, ON_DEVICE);
}

cudaError_t cudaFree(void *address) { return address ? give_back(address) : cudaSuccess; }

cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
    return take(address, bytes, PINNED);
}

cudaError_t cudaFreeHost(void *address) { return give_back(address); }

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = memory_bytes();
    *free_bytes = *total_bytes - used_bytes[device] - CONTEXT_BYTES;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
    struct range range = range_of(address);
    memset(attributes, 0, sizeof *attributes);
    attributes->device = range.device;
    attributes->type = cudaMemoryTypeUnregistered;
    if (range.kind == ON_DEVICE)
        attributes->type = cudaMemoryTypeDevice;
    if (range.kind == PINNED)
        attributes->type = cudaMemoryTypeHost;
    if (range.kind != PAGEABLE)
        attributes->devicePointer = (void *)address;
    if (range.kind == PINNED)
        attributes->hostPointer = (void *)address;
    return cudaSuccess;
}

static cudaError_t copy(void *to, const void *from, size_t bytes) {
    enum kind to_kind = range_of(to).kind, from_kind = range_of(from).kind;
    if (fault())
        return status();
    if (to_kind == ON_DEVICE && from_kind == ON_DEVICE) {
        count(WITHIN_DEVICE);
        if (bytes > SMALL)
            return cudaSuccess;
    } else if (to_kind == ON_DEVICE) {
        count(from_kind == PINNED ? TO_DEVICE_PINNED : TO_DEVICE_PAGEABLE);
    } else if (from_kind == ON_DEVICE) {
        count(to_kind == PINNED ? TO_HOST_PINNED : TO_HOST_PAGEABLE);
    }
    memmove(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    count(DEVICE_WAITS);
    return copy(to, from, bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return copy(to, from, bytes);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream) {
    for (size_t row = 0; row < height; row++) {
        cudaError_t error = copy((char *)to + row * to_pitch, (char *)from + row * from_pitch, width);
        if (error)
            return error;
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t stream) {
    return copy(to, from, bytes);
}

cudaError_t cudaMemsetAsync(void *address, int value, size_t bytes, cudaStream_t stream) {
    count(FILLS);
    if (bytes <= SMALL)
        memset(address, value, bytes);
    return status();
}

cudaError_t cudaMemset(void *address, int value, size_t bytes) {
    return cudaMemsetAsync(address, value, bytes, 0);
}

cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
    return cudaMalloc(address, 4096);
}

// --- Streams and events: all work is over when it was launched ------------------------------------

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    count(STREAM_WAITS);
    return status();
}

cudaError_t cudaDeviceSynchronize(void) {
    count(DEVICE_WAITS);
    return status();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    count(EVENT_WAITS);
    return status();
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { return status(); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return status(); }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    static long number = 0x1000; // no stream is ever looked into
    *stream = (cudaStream_t)__sync_fetch_and_add(&number, 64);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    *priority = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *capture) {
    *capture = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *capture,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *number) {
    *capture = cudaStreamCaptureStatusNone;
    if (id)
        *id = 0;
    return cudaSuccess;
}

// An event is the time at which it was recorded, in milliseconds.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    *event = calloc(1, sizeof(double));
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *(double *)event = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    *milliseconds = (float)(*(double *)end - *(double *)begin);
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    function(data);
    return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data,
                                  unsigned flags) {
    callback(stream, cudaSuccess, data);
    return cudaSuccess;
}

// --- Kernels --------------------------------------------------------------------------------------

static cudaError_t launch(void) {
    count(LAUNCHES);
    return status();
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                             size_t shared_bytes, cudaStream_t stream) {
    return launch();
}

cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared_bytes, cudaStream_t stream) {
    return launch();
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *launch_config, const void *kernel,
                                void **arguments) {
    return launch();
}

cudaError_t cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                                        size_t shared_bytes, cudaStream_t stream) {
    return launch();
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = 90;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel,
                                                                   int threads, size_t shared_bytes,
                                                                   unsigned flags) {
    *blocks = 2;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                          int threads, size_t shared_bytes) {
    *blocks = 2;
    return cudaSuccess;
}

// What the compiler makes of kernel<<<grid, block>>>(...): the numbers are pushed, the kernel's stub
// pops them and calls cudaLaunchKernel.
static __thread struct {
    dim3 grid, block;
    size_t shared_bytes;
    void *stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void *stream) {
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared_bytes = shared_bytes;
    configuration.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared_bytes = configuration.shared_bytes;
    *(void **)stream = configuration.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(void **kernel, const void *function) {
    *kernel = (void *)function;
    return cudaSuccess;
}

void **__cudaRegisterFatBinary(void *binary) { return calloc(1, sizeof(void *)); }
char __cudaInitModule(void **module) { return 1; }

// torch asks for functions of the driver by their names.
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    *function = driver ? dlsym(driver, name) : 0;
    if (!*function && driver)
        *function = dlsym(driver, "null_gpu_any");
    if (result)
        *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
