"""Numbers of the tests of frozen features: of few-shot and k-NN classification.

Used by the two tasks (run/metrics/fewshot.py, run/metrics/knn.py), their workers, and
run/metrics/probed.py.
"""

# Training images of a class, and the seeds of their draws (big_vision/configs/common_fewshot.py).
FEWSHOT_SHOTS, FEWSHOT_SEEDS = (1, 5, 10, 25), (0, 1, 2)

KNN_NEIGHBOURS = (10, 20)  # the first two of DINO's eval_knn.py; its tables are of 20
