"""Estimators for scikit-learn, which also learn the noise and the number of epochs.

base, regressor, classifier   the estimators: settings, data, predictions
search, tasks                 the number of epochs and the noise, by the likelihood of held-out rows
noise, stacked                the likeliest noise; several networks trained side by side
"""
