"""Stand-ins for the libraries of CUDA that torch loads: each has all the functions that torch's own
libraries lack, and nearly all of them do nothing and return 0, which is success.

libcudart is `runtime.c`. Functions that have to answer more than 0 are in `ANSWERS`.

Used by build.py.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

RUNTIME = Path(__file__).with_name("runtime.c")
RUNTIME_LIBRARY, DRIVER = "libcudart.so.13", "libcuda.so.1"
NVSHMEM = "libnvshmem_host.so.3"
OF_TORCH = (
    "libc10_cuda",
    "libcaffe2_nvrtc",
    "libtorch_cpu",
    "libtorch_cuda",
    "libtorch_cuda_linalg",
    "libtorch_nvshmem",
    "libtorch_python",
)
# Functions of these libraries have no version from which the library's name could be read.
PREFIXES = {
    "libnccl.so.2": ("nccl",),
    "libcusparseLt.so.0": ("cusparseLt",),
    "libcufile.so.0": ("cuFile",),
    NVSHMEM: ("nvshmem",),
    DRIVER: (
        *("cuCtx", "cuDevice", "cuFunc", "cuGet", "cuLaunch", "cuLink", "cuModule", "cuOccup"),
        *("cuPointer", "cuTensor"),
    ),
}
# Libraries that torch's need, though they take no function of them.
NEEDED = ("libcufft.so.12", "libcurand.so.10", "libcusparse.so.12")

# A program of NVRTC never compiles: nothing that ablate trains with may depend on it.
COMPILATION_ERROR = 6
ANSWERS = {
    "cublasLtGetVersion": "(void) { return 130000; }",
    "cublasLtMatmulAlgoGetHeuristic": (
        "(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference, "
        "int most, void *results, int *number) { *number = 1; return 0; }"
    ),
    "cudnnGetVersion": "(void) { return 91900; }",
    "cudnnGetCudartVersion": "(void) { return 13000; }",
    "ncclGetVersion": "(int *version) { *version = 22809; return 0; }",
    "ncclGetUniqueId": "(char *id) { id[0] = 1; return 0; }",
    "ncclCommGetAsyncError": "(void *group, int *error) { *error = 0; return 0; }",
    "cuDevicePrimaryCtxGetState": (
        "(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }"
    ),
    "nvrtcVersion": "(int *major, int *minor) { *major = 13; *minor = 0; return 0; }",
    "nvrtcCompileProgram": f"(void) {{ return {COMPILATION_ERROR}; }}",
    "nvrtcGetProgramLogSize": "(void *program, unsigned long *size) { *size = 1; return 0; }",
    "nvrtcGetProgramLog": "(void *program, char *log) { *log = 0; return 0; }",
}
# Functions that return a handle by their first argument; nobody looks behind one.
HANDLES = re.compile(
    r"cublasCreate_v2|cublasLt\w*Create|cudnn\w*Create|ncclCommInitRank(Config)?|"
    r"nvrtcCreateProgram|cuCtxGetCurrent"
)
TEXTS = re.compile(r"\w*(String|LastError)\w*")
PRODUCTS = re.compile(r"\w*(gemm|gemv|GemmEx|Matmul$)\w*", re.IGNORECASE)
# Bytes that a factorisation by cuSOLVER takes, by their sixth argument.
ROOMS = re.compile(r"cusolverDn[SDCZ]getrf_bufferSize")
FAILURES = re.compile(r"\w*Size")  # sizes by pointers that differ from function to function


def function(name: str) -> str:
    """Return a function in C that stands in for the one of this name."""
    if name in ANSWERS:
        return f"long {name}{ANSWERS[name]}"
    if HANDLES.fullmatch(name):
        return f"int {name}(void **handle) {{ *handle = (void *)16; return 0; }}"
    if TEXTS.fullmatch(name):
        return f'const char *{name}(void) {{ return "null GPU"; }}'
    if PRODUCTS.fullmatch(name):
        return f"int {name}(void) {{ if (null_gpu_product) null_gpu_product(); return 0; }}"
    if ROOMS.fullmatch(name):
        return (
            f"int {name}(void *handle, int rows, int columns, void *matrix, int stride, "
            "int *bytes) { *bytes = 0; return 0; }"
        )
    if FAILURES.fullmatch(name):
        return f"int {name}(void) {{ return 1; }}"
    return f"int {name}(void) {{ return 0; }}"


def symbols(library: Path, *options: str) -> list[str]:
    """Return the symbols of a library or an object file that `nm` lists with these options."""
    words = ["nm", *options, str(library)]
    output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return [line.split()[-1] for line in output.splitlines() if line.strip()]


def wanted_functions(torch_folder: Path) -> tuple[dict[str, set[str]], set[str]]:
    """Return the functions that torch's libraries need of each library of CUDA, by the library's
    file name, and the libraries whose symbols have versions."""
    undefined: set[str] = set()
    for name in OF_TORCH:
        undefined.update(symbols(torch_folder / f"{name}.so", "-D", "--undefined-only"))
    functions: dict[str, set[str]] = defaultdict(set)
    for name in NEEDED:
        functions[name] = set()
    versioned = {NVSHMEM}
    for symbol in undefined:
        name, _, version = symbol.partition("@")
        version = version.lstrip("@")
        if version.startswith("lib"):
            functions[version].add(name)
            versioned.add(version)
        elif version == "NVSHMEM":
            functions[NVSHMEM].add(name)
        elif not version:
            for library, prefixes in PREFIXES.items():
                if name.startswith(prefixes):
                    functions[library].add(name)
    wanted = set().union(*functions.values())
    assert wanted >= ANSWERS.keys(), f"no library calls {ANSWERS.keys() - wanted}"
    return functions, versioned


def build(torch_folder: Path, headers: Path, folder: Path) -> None:
    """Compile a stand-in for each library of CUDA into `folder`/lib. `torch_folder` has torch's own
    libraries, `headers` the headers of the CUDA runtime."""
    libraries, sources = folder / "lib", folder / "sources"
    libraries.mkdir(exist_ok=True)
    sources.mkdir(exist_ok=True)
    compiler = ["gcc", "-w", "-O1", "-fPIC", "-fno-builtin", f"-I{headers}"]
    runtime = sources / "runtime.o"
    subprocess.run([*compiler, "-c", str(RUNTIME), "-o", str(runtime)], check=True)
    ready = set(symbols(runtime, "--defined-only"))
    functions, versioned = wanted_functions(torch_folder)
    for library, names in functions.items():
        objects = []
        if library == RUNTIME_LIBRARY:
            objects.append(str(runtime))
            names = names - ready
        lines = ["__attribute__((weak)) extern void null_gpu_product(void);"]
        lines += [function(name) for name in sorted(names)]
        if library == DRIVER:
            lines.append(function("null_gpu_any"))
        source = sources / f"{library}.c"
        source.write_text("\n".join(lines) + "\n")
        link = [*compiler, "-shared", str(source), *objects, "-o", str(libraries / library)]
        link += [f"-Wl,-soname,{library}", "-lpthread", "-ldl"]
        if library in versioned:
            version = "NVSHMEM" if library == NVSHMEM else library
            versions = sources / f"{library}.map"
            versions.write_text(f"{version} {{ global: *; }};\n")
            link.append(f"-Wl,--version-script={versions}")
        subprocess.run(link, check=True)
