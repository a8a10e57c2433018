"""What a process with a null GPU does otherwise, because no kernel computes anything there.

Used by every Python process of the command `null`, which has this folder in PYTHONPATH. A patch is
made when its module is imported.
"""

import functools
import importlib.util
import sys


def use_no_cudnn(cudnn):
    """Leave convolutions and batch norms to torch's own kernels: cuDNN's engines are not there."""
    import torch

    torch._C._set_cudnn_enabled(False)


def accept_any_product(answers):
    """Have the check of a device accept any product. Errors of the device remain."""
    check = answers.ANSWERS["kernel"]

    def check_without_product(question, progress):
        answer = check(question, progress)
        if answer["why"] is not None and answer["why"].startswith("a product of"):
            return {"why": None}
        return answer

    answers.ANSWERS["kernel"] = check_without_product


def count_the_kernel_of_masks(draws):
    """Have masks drawn by the Triton kernel, as on a GPU, though its bits can't be checked. It is
    counted. `kernel_on.checked` is the function that checks them."""
    checked = draws.kernel_on

    @functools.cache
    def kernel_on(device):
        import null_triton

        with null_triton.importable():
            from ablate.data import philox_kernel
        return philox_kernel

    kernel_on.checked = checked
    draws.kernel_on = kernel_on


def leave_solutions_unchecked(fewshot):
    """Solve linear systems without a look at whether that could be done."""
    import torch

    torch.linalg.solve = lambda matrix, target: torch.linalg.solve_ex(matrix, target).result


PATCHES = {
    "torch.backends.cudnn": use_no_cudnn,
    "ablate.training.answers": accept_any_product,
    "ablate.training.task.fewshot": leave_solutions_unchecked,
    "ablate.data.draws": count_the_kernel_of_masks,
}


class Patcher:
    """A finder of modules that patches those of `PATCHES` once they have run."""

    def find_spec(self, name, path=None, target=None):
        patch = PATCHES.pop(name, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def run_and_patch(module):
            run(module)
            patch(module)

        spec.loader.exec_module = run_and_patch
        return spec


sys.meta_path.insert(0, Patcher())
