#!/usr/bin/env bash
# usage: fit.sh OUTDIR SEED [STEP] [PASSES]
# fit y = a*x + b to noisy points by stochastic gradient descent
set -euo pipefail
export LC_ALL=C

if [ $# -lt 2 ]; then
    echo "usage: $0 OUTDIR SEED [STEP] [PASSES]" >&2
    exit 2
fi
outdir=$1
seed=$2
step=${3:-0.01}
passes=${4:-1600}

mkdir -p "$outdir"
points=$outdir/points.dat

echo "making points (seed $seed)"
awk -v seed="$seed" 'BEGIN {
    srand(seed)
    for (i = 0; i < 2000; i++) {
        x = 4 * rand() - 2
        noise = 0
        for (k = 0; k < 12; k++) noise += rand()
        printf "%.6f %.6f\n", x, 1.7 * x - 0.4 + 0.5 * (noise - 6)
    }
}' > "$points"

echo "fitting $(wc -l < "$points") points, step=$step passes=$passes"
awk -v seed="$seed" -v step="$step" -v passes="$passes" -v coef="$outdir/coef.txt" '
{ x[NR] = $1; y[NR] = $2 }
END {
    srand(seed + 1)
    for (p = 1; p <= passes; p++) {
        eta = step / (1 + 10 * p / passes)
        for (i = 1; i <= NR; i++) {
            j = int(rand() * NR) + 1
            r = a * x[j] + b - y[j]
            a -= eta * r * x[j]
            b -= eta * r
        }
        if (p % 200 == 0) printf "pass %d  a=%.5f b=%.5f\n", p, a, b
    }
    for (i = 1; i <= NR; i++) { r = a * x[i] + b - y[i]; s += r * r }
    printf "%.8f %.8f\n", a, b > coef
    printf "final mse=%.8f\n", s / NR
}' "$points"
