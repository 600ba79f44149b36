"""Estimators from arrays to predictions with intervals; those for scikit-learn are in `sklearn`."""
