"""An empty module in place of torchvision, which has no build for the CPU alone in the registry.

fluke imports its ResNets, which nothing here uses. Import this before fluke.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torchmetrics  # noqa: F401  it looks for torchvision itself, so it has to come first

_MODELS = ModuleType("torchvision.models")
for _name in ("resnet18", "resnet34", "resnet50"):
    setattr(_MODELS, _name, None)
sys.modules.setdefault("torchvision", ModuleType("torchvision"))
sys.modules.setdefault("torchvision.models", _MODELS)
