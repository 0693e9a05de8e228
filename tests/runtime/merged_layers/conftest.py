"""Winners for layers that share an input."""

from __future__ import annotations

from layers_sharing_x import bench as bench
