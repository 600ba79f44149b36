"""Estimators from arrays to predictions; those for scikit-learn also learn the noise and the number of epochs."""
