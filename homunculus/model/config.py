"""The shape of the compact model: one dataclass, and presets as functions."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from homunculus.errors import ModelError
from homunculus.model.rotary import POSITIONS


@dataclass(frozen=True)
class Config:
    """Sizes of everything that is learned. `width` and `heads` are the reader's, the `scorer_...` ones the scorer's."""

    vocabulary: int = 1024
    leaf: int = 16  # pixels a side of a patch
    width: int = 384
    heads: int = 6
    encoder_layers: int = 4
    decoder_layers: int = 3
    decoder_growth: int = 3  # hidden units of a decoder's MLP, in widths
    scorer_stem: tuple[int, int] = (48, 96)  # channels at a quarter and an eighth of the image's side
    scorer_width: int = 160  # channels on the leaf grid
    scorer_heads: int = 5
    scorer_blocks: int = 4
    question_layers: int = 2
    positions: str = "level-x-y"  # how cells say where they are: see rotary.POSITIONS

    def __post_init__(self) -> None:
        for width, heads in ((self.width, self.heads), (self.scorer_width, self.scorer_heads)):
            if width % heads or (width // heads) % 2:
                raise ModelError(f"{width} channels do not split into {heads} heads of an even size: change either")
        if self.width // self.heads < 8:  # a pair of channels for each axis of rotary.AXES
            raise ModelError(f"heads of {self.width // self.heads} channels are too small: give at least 8 to each")
        if self.leaf % 8:
            raise ModelError(f"a leaf of {self.leaf} pixels cannot be halved three times: give a multiple of 8")
        if self.positions not in POSITIONS:
            raise ModelError(f"no positions '{self.positions}': choose {', '.join(POSITIONS)}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Config":
        """The inverse of `as_dict`, also after a trip through JSON.

        >>> Config.from_dict(small().as_dict()) == small()
        True
        """
        unknown = values.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise ModelError(f"unknown settings of a model: {', '.join(sorted(unknown))}: update homunculus")
        settings: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**settings)


def small() -> Config:
    """The model we train: 16.0 million parameters. The one that ships has `level-x-y` for positions."""
    return Config(positions="placed")


def tiny() -> Config:
    """For tests: everything there, nothing learned in earnest."""
    return Config(
        width=32,
        heads=2,
        encoder_layers=2,
        decoder_layers=2,
        scorer_stem=(8, 8),
        scorer_width=16,
        scorer_heads=2,
        scorer_blocks=1,
    )


PRESETS: dict[str, Callable[[], Config]] = {"small": small, "tiny": tiny}
