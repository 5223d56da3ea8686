"""fluke imports ResNets from torchvision, of which the registry has no build for the CPU alone.

None is used here, so an empty module takes its place. Import this before fluke.
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
