"""Shapes and types are enforced as the package's signatures state them, in every test.

A function that refuses an argument by itself, naming it, is let do so first: what only its signature rules out is an error here.
Dataclasses check their own fields.
"""

import functools
import inspect

import jaxtyping
import torch

strictly = jaxtyping.jaxtyped


def enforced(function=None, **settings):
    """jaxtyping's decorator, but for an argument that the function refuses itself."""
    if function is None:
        return functools.partial(enforced, **settings)
    if inspect.isclass(function):
        return function
    checked = strictly(function, **settings)

    @functools.wraps(function)
    def call(*args, **kwargs):
        if torch.compiler.is_compiling():  # what is traced has no room for checks
            return function(*args, **kwargs)
        try:
            return checked(*args, **kwargs)
        except jaxtyping.TypeCheckError:
            function(*args, **kwargs)
            raise

    return call


def enforce():
    """To be called before anything imports the package."""
    jaxtyping.jaxtyped = enforced
    jaxtyping.install_import_hook("attnid", "beartype.beartype")
