"""The documented algorithms of SageMaker Debugger where ours differ: each class has the name of its rule.

A rule names its class here as its calibration ``sagemaker``. Parameters have their documented names and defaults.
"""
