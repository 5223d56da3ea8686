"""Base of the methods with a personal model beside the global one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric, of_shared
from fedproto_app.core.section import Section
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.settings import Training
from fedproto_app.strategies.common.learner import Cohort, ContextT, Learner
from fedproto_app.tasks.task import AnyTask, Batch

PERSONAL = "personal."  # v is trained by the loop that trains w, so both are parameters


class PersonalModelLearner(Learner[ContextT, AnyTask]):
    """A client's copy w of the global model, which is shared, and its personal model v.

    The parameters of v have w's names with the prefix ``personal.``. Both models start equal.
    """

    def __init__(self, training: Training, section: Section, task: AnyTask) -> None:
        super().__init__(training, section, task)
        self.encoder = (*self.encoder, PERSONAL + task.encoder)

    @classmethod
    def sends(cls, section: object, sizes: Sizes) -> Sequence[Sends]:
        return [model(sizes.encoder, sizes.head)]

    def initial_parameters(self) -> dict[str, Tensor]:
        model = self.task.initial_parameters()
        return {**model, **{PERSONAL + name: value.clone() for name, value in model.items()}}

    def predictor(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.personal_model(parameters)

    def evaluate(self, cohort: Cohort, guidance: Guidance) -> dict[Metric, list[float]]:
        """Return the metrics of the predictor and of the shared model w."""
        personal = self.task.evaluate(self.predictor(cohort.parameters), cohort.samples)
        return personal | of_shared(self.task.evaluate(cohort.parameters, cohort.samples))

    def personal_model(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return v under w's names."""
        return {
            name: parameters[PERSONAL + name]
            for name in parameters
            if self.is_shared(name) and PERSONAL + name in parameters
        }

    def loss_of(self, model: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return the supervised loss of a model under w's names, [k]."""
        prediction = self.task.predict(model, self.task.represent(model, batch), batch)
        return self.task.loss(prediction, batch)
