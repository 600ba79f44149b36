"""Estimators for scikit-learn: the network, the noise and the number of epochs are found from the data."""
