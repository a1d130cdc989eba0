"""The three networks of a small model that answers questions about an image.

An encoder turns the image into vectors, a table turns tokens into vectors, and a causal decoder
reads both, with a cache of keys and values.
"""

import torch
from torch import Tensor, nn

from sample_models.training.networks import Residual, convolve

HIDDEN = 64
HEADS = 4
HEAD_DIM = HIDDEN // HEADS
LAYERS = 2
GRID = 8
"""The encoder gives GRID x GRID vectors, row by row."""
ROPE_THETA = 1000.0


class VisionEncoder(nn.Module):
    """Turn an image of 64 x 64 into 64 vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            convolve(3, 24, 2),
            convolve(24, 40, 2),
            Residual(40),
            convolve(40, HIDDEN, 2),
            Residual(HIDDEN),
        )
        self.place = nn.Parameter(torch.randn(1, GRID * GRID, HIDDEN) * 0.02)
        self.block = Block()

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Map float32 (B, 3, 64, 64), RGB, -1..1, to (B, 64, HIDDEN)."""
        vectors = self.features(pixel_values).flatten(2).transpose(1, 2) + self.place
        # Each vector sees all others: no mask, no rotation, no past.
        seen, _ = self.block(vectors, None, None, None)
        features: Tensor = seen
        return features


class DenseHead(nn.Module):
    """Read shapes and colours off the encoder's vectors; needed in training only.

    Args:
        classes: numbers of classes, background included, of each map.
    """

    def __init__(self, classes: tuple[int, ...]) -> None:
        super().__init__()
        self.classes = classes
        self.read = nn.Linear(HIDDEN, 4 * sum(classes))

    def forward(self, image_features: Tensor) -> tuple[Tensor, ...]:
        """Map (B, 64, HIDDEN) to logits (B, classes, 2 GRID, 2 GRID), one tensor a map."""
        grid = (
            self.read(image_features).transpose(1, 2).reshape(len(image_features), -1, GRID, GRID)
        )
        return torch.split(nn.functional.pixel_shuffle(grid, 2), list(self.classes), dim=1)


class Block(nn.Module):
    """One transformer layer, normalised before each part."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(HIDDEN)
        self.project = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.merge = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.before_feed = nn.LayerNorm(HIDDEN)
        self.feed = nn.Sequential(
            nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN)
        )

    def forward(
        self,
        vectors: Tensor,
        rotation: tuple[Tensor, Tensor] | None,
        hidden_from: Tensor | None,
        past: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Map (B, S, HIDDEN) to the same shape, and give the keys and values for the next call.

        Args:
            vectors: one vector a position.
            rotation: cosine and sine (B, 1, S, HEAD_DIM) by position.
            hidden_from: bool (B, 1, S, T), True where a position must not see a key.
            past: keys and values (B, HEADS, P, HEAD_DIM); T = P + S.
        """
        batch, count = vectors.shape[0], vectors.shape[1]
        mixed = self.project(self.before_attention(vectors))
        query, key, value = (
            mixed.reshape(batch, count, 3, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4).unbind(0)
        )
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        match = query @ key.transpose(2, 3) * HEAD_DIM**-0.5
        if hidden_from is not None:
            match = match.masked_fill(hidden_from, -1e4)
        read = (match.softmax(dim=3) @ value).transpose(1, 2).reshape(batch, count, HIDDEN)
        vectors = vectors + self.merge(read)
        return vectors + self.feed(self.before_feed(vectors)), (key, value)


class Decoder(nn.Module):
    """Predict the next token at each position.

    Args:
        tokens: size of the vocabulary.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.predict = nn.Linear(HIDDEN, tokens, bias=False)

    def forward(
        self, inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """Map vectors and cache to logits (B, S, tokens) and the longer cache.

        Args:
            inputs_embeds: float32 (B, S, HIDDEN).
            attention_mask: int64 (B, P + S), 0 for padding, the past included.
            position_ids: int64 (B, S).
            past: key and value of each layer in turn, float32 (B, HEADS, P, HEAD_DIM).
        """
        count, total = inputs_embeds.shape[1], attention_mask.shape[1]
        positions = torch.arange(count)[:, None] + (total - count)
        later = torch.arange(total)[None, :] > positions
        hidden_from = later[None, None] | (attention_mask == 0)[:, None, None]
        vectors, rotation = inputs_embeds, rotation_at(position_ids)
        present: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            cache = (past[2 * index], past[2 * index + 1])
            vectors, added = layer(vectors, rotation, hidden_from, cache)
            present += added
        return self.predict(self.norm(vectors)), *present


def rotation_at(position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine (B, 1, S, HEAD_DIM) of rotary position embedding (arXiv 2104.09864)."""
    powers = torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM
    angles = position_ids[:, None, :, None].float() * ROPE_THETA**-powers
    doubled = torch.cat([angles, angles], dim=3)
    return doubled.cos(), doubled.sin()


def rotate(vectors: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn float32 (B, HEADS, S, HEAD_DIM) by its positions."""
    first, second = vectors[..., : HEAD_DIM // 2], vectors[..., HEAD_DIM // 2 :]
    return vectors * rotation[0] + torch.cat([-second, first], dim=3) * rotation[1]


def empty_cache(batch: int) -> list[Tensor]:
    """Return keys and values of no positions."""
    return [torch.zeros(batch, HEADS, 0, HEAD_DIM) for _ in range(2 * LAYERS)]
