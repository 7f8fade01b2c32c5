"""A strategy in the files of a run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import GetJsonSchemaHandler, PrivateAttr, ValidationInfo, model_validator
from pydantic_core import CoreSchema

from advisor.strategies.schema import shape_of, strategy_of, with_own_keys
from advisor.strategies.strategy import Strategy
from ensemble.common.schema import Line, Schema, must, wrong
from ensemble.common.text import visible
from ensemble.errors import InputError


class StrategyKey(Schema, extra="allow"):
    """A way to answer questions. Its other keys are the strategy's own ones, such as `weights`, `routes` or `draws`."""

    strategy: Line
    """its name, or the method of the set that decodes together"""
    members: Annotated[tuple[Line, ...], must(bool, "a list of names")]
    """the models in the order in which they are asked"""

    _value: Strategy = PrivateAttr()

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The JSON Schema, with the own keys of all strategies."""
        return with_own_keys(handler(core), handler, shape_of)

    @model_validator(mode="after")
    def _with_own_keys(self, info: ValidationInfo) -> StrategyKey:
        own = self.model_extra or {}
        values = {"strategy": self.strategy, "members": self.members, **(_clean(own) if info.context else own)}
        try:
            self._value = strategy_of(values, "this", "", to_run=False)
        except InputError as error:
            raise wrong(f"a strategy of this kind ({str(error).removeprefix('this: ').removesuffix('; ')})") from None
        return self

    @property
    def key(self) -> Strategy:
        """The strategy, which tells it from others of a run."""
        return self._value

    @property
    def title(self) -> str:
        """The strategy in few words."""
        return str(self._value)

    @property
    def is_single(self) -> bool:
        """Whether it is one model that answers once, with which the others are compared."""
        return self._value.IS_SINGLE

    @property
    def is_decoded(self) -> bool:
        """Whether it is a set that decodes together; its name is then the method."""
        return not self._value.ASKS


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, dict):
        return {visible(key): _clean(each) for key, each in value.items()}
    return value
