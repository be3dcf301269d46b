"""The classic rules: those of SageMaker Debugger, with new thresholds. One rule per file."""
