"""scikit-learn's checks of estimators, for each of Gridwise's."""

from __future__ import annotations

import warnings
from pathlib import Path

import sklearn
import torch
from sklearn.utils.estimator_checks import check_estimator

from gridwise.tagi.sklearn import TAGIClassifier, TAGIRegressor

from .findings import Finding
from .results import Result, summarised

ABOUT = (
    "`sklearn.utils.estimator_checks.check_estimator` for `TAGIRegressor` and `TAGIClassifier`: every check that it has, "
    "without a list of expected failures. One fails for both: a row of weight 2 counts as two rows, but two rows fall into "
    "other batches and folds than one, as in scikit-learn's MLPRegressor. Checks that scikit-learn skips are left out."
)
ESTIMATORS = (TAGIRegressor, TAGIClassifier)


def findings(estimator: type) -> list[Finding]:
    """What came of each check of an estimator."""
    torch.set_num_threads(1)  # networks are tiny, and other work may run beside
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checked = check_estimator(estimator((20,), random_state=0, max_epochs=15), on_fail=None, on_skip=None)
    found = []
    for each in checked:
        outcome = {"passed": "equal", "skipped": "inapplicable"}.get(each["status"], "wrong")
        why = "" if outcome != "wrong" else f"{each['check_name']}: {type(each['exception']).__name__}"
        found.append(Finding(f"{estimator.__name__} {each['check_name']}", estimator.__name__, outcome, text=why))
    return found


def run(fraction: float, seed: int, kept: Path) -> Result:
    """The suite, for conformance.run; always all of it."""
    result = Result(
        "estimators", "scikit-learn's checks of estimators", f"scikit-learn {sklearn.__version__}", ABOUT, "estimators"
    )
    return summarised(result, [finding for estimator in ESTIMATORS for finding in findings(estimator)])
