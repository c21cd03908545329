"""Human gaze as a judge of where to look: data sets, metrics, baselines, one comparison."""
