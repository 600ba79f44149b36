"""What optimisation needs beyond torch when parameters lie on a grid."""

from .grad_scaler import GradScaler as GradScaler
