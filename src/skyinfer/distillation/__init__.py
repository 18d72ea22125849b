"""A small model that answers as a larger one does: asks a teacher, keeps its answers, trains on them, compares.

    from skyinfer.distillation import distill

    print(distill(states, questions, "https://api.example/v1/systemone", "student"))

    teachers.py     a model of skyinfer's, or an endpoint of the System One API
    kept.py         the file of answers, which a later run reuses
    distilling.py   all of it, and the report

Training needs the extra `train`; asking needs nothing beside what skyinfer itself needs.
"""

from __future__ import annotations

from .distilling import Distillation, distill
from .teachers import LocalTeacher, RemoteTeacher, TeacherError

__all__ = ["Distillation", "LocalTeacher", "RemoteTeacher", "TeacherError", "distill"]
