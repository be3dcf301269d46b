"""The classic rules: those of SageMaker Debugger, calibrated anew. One rule per file."""
