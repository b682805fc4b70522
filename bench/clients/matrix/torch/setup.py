"""Stands in for PyTorch in the environment of lm-eval and guidellm, which load 5 GB of it for a list of prompts."""
from setuptools import setup

setup(name="torch", version="2.9.1", packages=["torch", "torch.nn", "torch.utils", "torch.utils.data"])
