"""From arrays to predictions with intervals.

estimator                              what the estimators share
regression, classification, forecasting   one each
batches, scaling                       training data in batches; standardisation over all workers
"""
