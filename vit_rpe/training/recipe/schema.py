"""What a recipe can say: every key with its type, its default and its meaning, in one place.

Names are timm's where timm has one. `python train.py --help-recipe` prints this table, and
docs/recipes.md holds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .values import (
    AugmentationPolicy,
    BelowOne,
    Betas,
    CompileBackend,
    CropShare,
    Epochs,
    Frames,
    ModelArguments,
    ModelName,
    Natural,
    NoiseRange,
    NonNegative,
    OptimizerName,
    Pair,
    Positive,
    PositiveNumber,
    PositiveTriple,
    RunName,
    Seed,
    Share,
    Side,
    Triple,
)


class Recipe(BaseModel):
    """One training run, in numbers. Everything is checked before anything starts."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    # --- model
    model: ModelName = Field(description="name of a timm model: one of ours, or any of timm's own")
    model_kwargs: ModelArguments = Field({}, description="arguments of the model, by name")
    num_classes: Positive | None = Field(None, description="null: as many as the shards name")
    img_size: Side | None = Field(None, description="side of the images; null: the model's")
    num_frames: Frames | None = Field(
        None, description="of a clip, for a model of videos: the data are videos; null: images"
    )
    pretrained: bool = Field(False, description="start from timm's published weights")
    initial_checkpoint: str | None = Field(
        None,
        description="start from these weights: a run, a checkpoint or a .safetensors file; "
        "positions and masks are resampled to img_size, and a classifier of another size starts "
        "anew",
    )
    drop: BelowOne = Field(0.0, description="dropout")
    drop_path: BelowOne = Field(0.0, description="stochastic depth")
    grad_checkpointing: bool = Field(
        False, description="recompute activations in the backward pass"
    )
    channels_last: bool = Field(False, description="memory format of images and convolutions")
    torchcompile: CompileBackend | None = Field(
        None, description="a backend of torch.compile, e.g. inductor"
    )

    # --- data
    data_dir: str = Field(description="folder, address or pattern of the shards (docs/data.md)")
    data_source: Literal["digits", "moving_digits"] | None = Field(
        None, description="what makes the shards if data_dir has none: these need no network"
    )
    train_split: str = Field("train", description="split to train on")
    val_split: str | None = Field("val", description="split to evaluate on; null: no evaluation")
    data_cache: str | None = Field(None, description="folder that keeps shards from afar")
    workers: Natural = Field(
        4, le=512, description="processes that read images, for each process that trains"
    )
    shuffle_window: Positive = Field(64, description="shards whose samples are shuffled together")
    aug_repeats: Positive = Field(
        1, le=100, description="copies of a sample in an epoch, augmented apart"
    )
    max_bad_samples: Share = Field(
        0.001, description="share of unreadable samples that is tolerated"
    )
    frame_stride: Positive | None = Field(
        1,
        description="videos: a clip takes every so many-th frame; null: it spans the whole video, "
        "one frame of each of num_frames equal parts",
    )
    val_clips: Positive = Field(
        1, le=1000, description="videos: clips spread over a video that are averaged in evaluation"
    )
    val_crops: Literal[1, 3] = Field(
        1, description="videos: crops of each of these clips: the centre, or along the longer side"
    )
    video_decoder: Literal["pyav", "torchcodec"] = Field(
        "pyav", description="videos: torchcodec needs FFmpeg's libraries"
    )

    # --- batches and length
    batch_size: Positive = Field(
        256,
        description="samples of one step, of all processes and accumulation steps together: the "
        "number of GPUs does not change a recipe",
    )
    grad_accum_steps: Positive = Field(1, description="parts into which a process cuts its batch")
    validation_batch_size: Positive | None = Field(
        None, description="of one process in evaluation; null: that of one part in training"
    )
    epochs: Epochs = Field(300, description="passes over the training split")
    seed: Seed = Field(42, description="of weights, order, augmentation and dropout")

    # --- augmentation
    no_aug: bool = Field(False, description="only resize and crop the centre, as in evaluation")
    scale: Pair = Field([0.08, 1.0], description="of random crops, as a share of the area")
    ratio: Pair = Field([3 / 4, 4 / 3], description="of random crops, width to height")
    hflip: Share | None = Field(
        None, description="probability of a horizontal flip; null: 0.5 for images, 0 for clips"
    )
    vflip: Share = Field(0.0, description="probability of a vertical flip")
    color_jitter: NonNegative | None = Field(0.4, description="strength; null for none")
    aa: AugmentationPolicy | None = Field(
        None, description="policy: rand-m9-mstd0.5-inc1, original, 3a, trivial, ..."
    )
    reprob: Share = Field(0.0, description="probability of random erasing")
    remode: Literal["const", "rand", "pixel"] = Field("pixel", description="what erases")
    recount: Positive = Field(1, le=100, description="most erased rectangles")
    train_interpolation: str = Field("random", description="of crops in training")
    interpolation: str | None = Field(None, description="in evaluation; null: the model's")
    crop_pct: CropShare | None = Field(
        None, description="centre crop in evaluation; null: the model's"
    )
    mean: Triple | None = Field(None, description="of the pixels; null: the model's")
    std: PositiveTriple | None = Field(None, description="of the pixels; null: the model's")

    # --- loss
    mixup: NonNegative = Field(0.0, description="alpha of mixup")
    cutmix: NonNegative = Field(0.0, description="alpha of CutMix")
    mixup_prob: Share = Field(1.0, description="probability that a batch is mixed at all")
    mixup_switch_prob: Share = Field(0.5, description="probability of CutMix where both are on")
    mixup_mode: Literal["batch", "pair", "elem"] = Field("batch", description="who shares a draw")
    mixup_off_epoch: Natural = Field(0, description="epoch from which nothing is mixed; 0: never")
    smoothing: BelowOne = Field(0.1, description="label smoothing")
    bce_loss: bool = Field(
        False, description="binary (sigmoid) instead of categorical cross-entropy"
    )
    bce_sum: bool = Field(False, description="sum the binary losses of a sample, not their mean")
    bce_target_thresh: BelowOne | None = Field(
        None, description="targets above it become 1, others 0"
    )
    bce_pos_weight: PositiveNumber | None = Field(None, description="weight of positive targets")
    kd_model_name: ModelName | None = Field(None, description="a timm model that teaches")
    kd_model_kwargs: ModelArguments = Field({}, description="arguments of the teacher")
    kd_checkpoint: str | None = Field(
        None, description="weights of the teacher; null: timm's published ones"
    )
    kd_type: Literal["soft", "hard"] = Field(
        "soft", description="learn the teacher's distribution, or its first choice"
    )
    kd_temperature: PositiveNumber = Field(1.0, description="of soft distillation")
    task_loss_weight: Share = Field(0.5, description="of the labels; the teacher has the rest")

    # --- optimiser
    opt: OptimizerName = Field("adamw", description="any optimiser of timm's")
    lr: PositiveNumber = Field(
        1e-3, description="learning rate for the whole batch_size; nothing scales it"
    )
    weight_decay: NonNegative = Field(0.05, description="not for biases, norms, positions, masks")
    momentum: NonNegative = Field(0.9, description="where the optimiser has one")
    opt_eps: NonNegative | None = Field(None, description="null: the optimiser's")
    opt_betas: Betas | None = Field(None, description="null: the optimiser's")
    opt_kwargs: dict[str, Any] = Field({}, description="other arguments of the optimiser")
    layer_decay: PositiveNumber | None = Field(
        None, le=1, description="factor of the learning rate from layer to layer, downwards"
    )
    clip_grad: PositiveNumber | None = Field(None, description="null: no clipping")
    clip_mode: Literal["norm", "value", "agc"] = Field("norm", description="what is clipped")

    # --- schedule
    sched: Literal["cosine", "tanh", "step", "multistep", "poly", "plateau"] = Field(
        "cosine", description="of the learning rate; all but plateau change it in every step"
    )
    warmup_epochs: NonNegative = Field(
        5,
        description="linear rise at the beginning; by default a quarter of a run of 5 epochs or "
        "fewer",
    )
    warmup_lr: NonNegative = Field(1e-5, description="where the rise starts")
    warmup_prefix: bool = Field(
        False, description="the schedule begins after the rise, not with it"
    )
    min_lr: NonNegative = Field(0.0, description="where the schedule ends")
    cooldown_epochs: Natural = Field(0, description="epochs at min_lr after the others")
    decay_epochs: PositiveNumber = Field(90, description="step: epochs between two drops")
    decay_milestones: list[Natural] = Field(
        [90, 180, 270], description="multistep: epochs of drops"
    )
    decay_rate: NonNegative = Field(0.1, description="factor of a drop; poly: the power")
    patience_epochs: Natural = Field(10, description="plateau: epochs without a better metric")
    lr_cycle_mul: PositiveNumber = Field(1.0, description="length of a cycle over the one before")
    lr_cycle_decay: NonNegative = Field(0.5, description="height of a cycle over the one before")
    lr_cycle_limit: Positive = Field(1, description="cycles")
    lr_k_decay: NonNegative = Field(1.0, description="k of k-decay, for cosine and poly")
    lr_noise: NoiseRange | None = Field(None, description="shares of the run with noise")
    lr_noise_pct: NonNegative = Field(0.67, description="limit of the noise")

    # --- averaging, precision
    model_ema: bool = Field(
        False, description="keep a moving average of the weights, evaluated too"
    )
    model_ema_decay: BelowOne = Field(0.9998, description="of the average")
    model_ema_warmup: bool = Field(False, description="let the decay grow from 0")
    amp: bool | None = Field(None, description="mixed precision; null: what accelerate launch says")
    amp_dtype: Literal["bfloat16", "float16"] = Field("bfloat16", description="of mixed precision")
    device: Literal["cpu", "cuda"] | None = Field(
        None, description="null: a GPU where there is one"
    )

    # --- the run
    output: str = Field("runs", description="folder of runs")
    experiment: RunName | None = Field(
        None, description="name of the run; null: that of the recipe file"
    )
    resume: str | None = Field(
        None,
        description="auto: go on where the run stopped, or begin; or a checkpoint to go on from; "
        "null: begin, and refuse a run that is there",
    )
    eval_metric: Literal["top1", "top5", "loss"] = Field("top1", description="what is best")
    eval_ema: bool = Field(True, description="where there is an average, its metric decides")
    val_interval: Positive = Field(1, description="epochs between two evaluations")
    checkpoint_hist: Positive = Field(3, description="how many of the best checkpoints are kept")
    recovery_interval: Natural = Field(
        0, description="steps between checkpoints within an epoch; 0: none"
    )
    max_skipped_steps: Natural = Field(
        10,
        description="steps of an epoch that may be skipped because loss or gradient is not finite",
    )
    collective_timeout: PositiveNumber = Field(
        600,
        description="several processes: seconds that a step, or a batch of an evaluation, may take "
        "before the run ends and names the process that is stuck",
    )
    log_interval: Positive = Field(50, description="steps between two lines of the log")
    log_wandb: bool = Field(False, description="log to Weights & Biases too")
    wandb_project: str = Field("vit_rpe", description="project there")

    # --- checks of several fields

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Take away keys whose null is no value; fit the default warm-up to a short run."""
        values = {name: value for name, value in values.items() if not _removed(name, value)}
        epochs, warmup = values.get("epochs"), Recipe.model_fields["warmup_epochs"].default
        if isinstance(epochs, int) and epochs <= warmup and not values.get("warmup_prefix"):
            values.setdefault("warmup_epochs", epochs / 4)
        return values

    @model_validator(mode="after")
    def _possible(self) -> Recipe:
        for wrong, message in self._impossible():
            if wrong:
                raise ValueError(message)
        return self

    def _impossible(self) -> Iterator[tuple[bool, str]]:
        """What no single field can know."""
        yield (
            self.batch_size % self.grad_accum_steps != 0,
            f"batch_size {self.batch_size} has no {self.grad_accum_steps} equal parts "
            "(grad_accum_steps)",
        )
        yield (
            self.warmup_epochs >= self.epochs and not self.warmup_prefix,
            f"warmup_epochs ({self.warmup_epochs:g}) must be below epochs ({self.epochs})",
        )
        yield self.min_lr > self.lr, f"min_lr ({self.min_lr:g}) is above lr ({self.lr:g})"
        yield (
            self.pretrained and self.initial_checkpoint is not None,
            "pretrained and initial_checkpoint are two beginnings: give one",
        )
        for name in ("bce_sum", "bce_target_thresh", "bce_pos_weight"):
            yield bool(getattr(self, name)) and not self.bce_loss, f"{name} needs bce_loss: true"
        for name in ("kd_checkpoint", "kd_model_kwargs"):
            yield (
                bool(getattr(self, name)) and not self.kd_model_name,
                f"{name} needs kd_model_name",
            )
        yield (
            self.sched == "plateau" and (self.val_split is None or self.val_interval > 1),
            "sched: plateau needs an evaluation after every epoch (val_split, val_interval: 1)",
        )
        for name in ("scale", "ratio"):
            low, high = getattr(self, name)
            yield not 0 < low <= high, f"{name} goes from low to high, got [{low:g}, {high:g}]"
        low, *high = self.lr_noise or [0.0]
        yield high < [low] and bool(high), f"lr_noise goes from low to high, got {self.lr_noise}"
        yield (
            self.no_aug and (self.aa is not None or self.reprob > 0),
            "no_aug: true cannot be combined with aa or reprob",
        )
        for name in ("frame_stride", "val_clips", "val_crops", "video_decoder"):
            changed = getattr(self, name) != Recipe.model_fields[name].default
            yield changed and self.num_frames is None, f"{name} is for videos: it needs num_frames"
        own = self.model_kwargs.get("num_frames")
        yield (
            self.num_frames is not None and own not in (None, self.num_frames),
            f"num_frames is {self.num_frames}, and {own} in model_kwargs: give it once",
        )
        for source, videos in (("digits", False), ("moving_digits", True)):
            yield (
                self.data_source == source and (self.num_frames is not None) != videos,
                f"data_source {source} makes {'videos' if videos else 'images'}: "
                f"{'it needs' if videos else 'take away'} num_frames",
            )
        yield (
            self.channels_last and self.num_frames is not None,
            "channels_last is for images, and num_frames makes clips",
        )
        yield (
            self.model_ema_warmup and not self.model_ema,
            "model_ema_warmup needs model_ema: true",
        )

    @model_validator(mode="before")
    @classmethod
    def _flips(cls, values: dict[str, Any]) -> dict[str, Any]:
        """A mirror changes no object, but it turns a motion to the left into one to the right."""
        if values.get("hflip") is not None:
            return values
        return {**values, "hflip": 0.5 if values.get("num_frames") is None else 0.0}

    @property
    def best_of(self) -> str:
        """The column of summary.csv that decides which checkpoint is best."""
        return f"{'ema' if self.model_ema and self.eval_ema else 'eval'}_{self.eval_metric}"

    @property
    def mixes(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0


def _removed(name: str, value: Any) -> bool:
    """Whether a key is null that has no null of its own: its default holds."""
    field = Recipe.model_fields.get(name)
    return value is None and field is not None and type(None) not in get_args(field.annotation)


def table() -> str:
    """All keys as a Markdown table."""
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, schema in Recipe.model_json_schema()["properties"].items():
        default = "**required**" if "default" not in schema else f"`{_shown(schema['default'])}`"
        lines.append(f"| `{name}` | {_kind(schema)} | {default} | {schema['description']} |")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)


def _kind(schema: dict[str, Any]) -> str:
    """A JSON schema in a word or two."""
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema["type"] == "array":
        return f"list of {_kind(schema['items'])}"
    kind = str(schema["type"])
    return {"object": "mapping", "boolean": "true, false"}.get(kind, kind)
