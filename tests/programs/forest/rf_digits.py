# random forest on the 8x8 digits
import sys, os
import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split

if len(sys.argv) < 3:
    sys.exit("usage: rf_digits.py OUT_FOLDER SEED [N_TREES] [MAX_DEPTH]")
out = sys.argv[1]
seed = int(sys.argv[2])
n_trees = int(sys.argv[3]) if len(sys.argv) > 3 else 400
max_depth = int(sys.argv[4]) if len(sys.argv) > 4 else None

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=seed)
print("train", X_train.shape, "test", X_test.shape)

clf = RandomForestClassifier(n_estimators=0, max_depth=max_depth, warm_start=True, random_state=seed)
while clf.n_estimators < n_trees:
    clf.n_estimators = min(clf.n_estimators + 50, n_trees)
    clf.fit(X_train, y_train)
    print(clf.n_estimators, "trees, train acc", clf.score(X_train, y_train), flush=True)

pred = clf.predict(X_test)
os.makedirs(out, exist_ok=True)
np.savetxt(os.path.join(out, "confusion.csv"), confusion_matrix(y_test, pred), fmt="%d", delimiter=",")
print("accuracy: %.3f" % np.mean(pred == y_test))
