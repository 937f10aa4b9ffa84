"""The schema of a recipe: every key with its type, default and meaning, in one place.

Names are timm's where timm has one. `vit-rpe train --help-recipe` prints the keys in tables, and
docs/recipes.md holds them. A key that may differ when a run is resumed is marked `MayChange`. What
keys must fulfill together is checked right below them.
"""

from __future__ import annotations

from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .on_resume import MayChange, MayGrow
from .sources import SOURCES, SourceName
from .values import (
    AugmentationPolicy,
    BelowOne,
    Betas,
    CompileBackend,
    CropFraction,
    Epochs,
    Fraction,
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
    Side,
    Triple,
)


class Recipe(BaseModel):
    """One training run in numbers. Everything is checked before anything starts."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    # --- model
    model: ModelName = Field(description="name of a timm model: one of ours, or any of timm's own")
    model_kwargs: ModelArguments = Field({}, description="arguments of the model, by name")
    num_classes: MayChange[Positive | None] = Field(
        None, description="null: as many as the shards name"
    )
    img_size: Side | None = Field(None, description="side of the images; null: the model's")
    num_frames: Frames | None = Field(
        None, description="frames of a clip: setting it selects video data; null: images"
    )
    pretrained: MayChange[bool] = Field(False, description="start from timm's published weights")
    initial_checkpoint: MayChange[str | None] = Field(
        None,
        description="start from these weights: a run, a checkpoint or a .safetensors file; "
        "positions and masks are resampled to img_size, and a classifier of another size is "
        "initialized",
    )
    drop: BelowOne = Field(
        0.0,
        description="dropout before the classifier; that in the blocks is a ViT's "
        "model_kwargs.proj_drop_rate and pos_drop_rate",
    )
    drop_path: BelowOne = Field(0.0, description="stochastic depth")
    grad_checkpointing: MayChange[bool] = Field(
        False, description="recompute activations in the backward pass"
    )
    channels_last: MayChange[bool] = Field(
        False, description="memory format of images and convolutions"
    )
    torchcompile: MayChange[CompileBackend | None] = Field(
        None, description="a backend of torch.compile, e.g. inductor"
    )

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        _refuse(
            self.pretrained and self.initial_checkpoint is not None,
            "pretrained and initial_checkpoint are two beginnings: give one",
        )
        own = self.model_kwargs.get("num_frames")
        _refuse(
            self.num_frames is not None and own not in (None, self.num_frames),
            f"num_frames is {self.num_frames}, and {own} in model_kwargs: give it once",
        )
        _refuse(
            self.channels_last and self.num_frames is not None,
            "channels_last is for images, and num_frames makes clips",
        )
        return self

    # --- data
    data_dir: MayChange[str] = Field(
        description="folder, address or pattern of the shards (docs/data.md)"
    )
    data_source: MayChange[SourceName | None] = Field(
        None, description="what makes the shards if data_dir has none: these need no network"
    )
    train_split: str = Field("train", description="split to train on")
    val_split: str | None = Field("val", description="split to evaluate on; null: no evaluation")
    val_fraction: BelowOne = Field(
        0.0,
        description="part of the training split, by a hash of the keys, that is not trained on but "
        "evaluated, in place of val_split; 0: none",
    )
    data_cache: MayChange[str | None] = Field(
        None, description="folder that keeps copies of remote shards"
    )
    workers: MayChange[Natural] = Field(
        4, le=512, description="processes that read images, for each process that trains"
    )
    shuffle_window: Positive = Field(64, description="shards whose samples are shuffled together")
    aug_repeats: Positive = Field(
        1, le=100, description="copies of a sample in an epoch, each augmented on its own"
    )
    max_bad_samples: MayChange[Fraction] = Field(
        0.001, description="fraction of unreadable samples that is tolerated"
    )
    frame_stride: Positive | None = Field(
        1,
        description="videos: distance between two frames of a clip; null: the clip spans the whole "
        "video, with one frame of each of num_frames equal parts",
    )
    val_clips: Positive = Field(
        1, le=1000, description="videos: clips spread over a video that are averaged in evaluation"
    )
    val_crops: Literal[1, 3] = Field(
        1, description="videos: crops of each of these clips: the center, or along the longer side"
    )
    video_decoder: Literal["pyav", "torchcodec"] = Field(
        "pyav", description="videos: torchcodec needs FFmpeg's libraries"
    )

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        videos = self.num_frames is not None
        for name in ("frame_stride", "val_clips", "val_crops", "video_decoder"):
            changed = getattr(self, name) != Recipe.model_fields[name].default
            _refuse(changed and not videos, f"{name} is for videos: it needs num_frames")
        if self.data_source is not None and SOURCES[self.data_source].has_videos != videos:
            made, cure = ("images", "take away") if videos else ("videos", "it needs")
            raise ValueError(f"data_source {self.data_source} makes {made}: {cure} num_frames")
        return self

    @property
    def has_validation(self) -> bool:
        """Whether there is anything to evaluate during training."""
        return self.val_split is not None or self.val_fraction > 0

    @property
    def validation(self) -> str | None:
        """The samples that figures of the run are about, in words."""
        if not self.val_fraction:
            return self.val_split
        return f"val_fraction {self.val_fraction:g} of {self.train_split}"

    # --- batches and length
    batch_size: Positive = Field(
        256,
        description="samples of one step, of all processes and accumulation steps together: the "
        "number of GPUs does not change a recipe",
    )
    grad_accum_steps: MayChange[Positive] = Field(
        1, description="parts into which a process cuts its batch"
    )
    validation_batch_size: MayChange[Positive | None] = Field(
        None, description="of one process in evaluation; null: that of one part in training"
    )
    epochs: MayGrow[Epochs] = Field(300, description="passes over the training split")
    seed: Seed = Field(42, description="of weights, order, augmentation and dropout")

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        self.per_rank(1)
        return self

    def per_rank(self, world_size: int) -> int:
        """Return the samples of one process in one step, if all processes can have equal parts."""
        pieces = world_size * self.grad_accum_steps
        processes = f"{world_size} process{'es' * (world_size > 1)}"
        _refuse(
            self.batch_size % pieces != 0,
            f"batch_size {self.batch_size} has no equal parts for {processes} x "
            f"grad_accum_steps {self.grad_accum_steps}; a multiple of {pieces} has",
        )
        size = self.batch_size // world_size
        _refuse(
            self.mixes and size % 2 != 0,
            "mixup and cutmix need an even number of samples on every process, batch_size "
            f"{self.batch_size} gives {size}",
        )
        return size

    # --- augmentation
    no_aug: bool = Field(False, description="only resize and crop the center, as in evaluation")
    scale: Pair = Field([0.08, 1.0], description="area of random crops, as a fraction of the image")
    ratio: Pair = Field([3 / 4, 4 / 3], description="aspect ratio of random crops, width to height")
    hflip: Fraction | None = Field(
        None, description="probability of a horizontal flip; null: 0.5 for images, 0 for clips"
    )
    vflip: Fraction = Field(0.0, description="probability of a vertical flip")
    color_jitter: NonNegative | None = Field(0.4, description="strength; null for none")
    aa: AugmentationPolicy | None = Field(
        None, description="policy: rand-m9-mstd0.5-inc1, original, 3a, trivial, ..."
    )
    reprob: Fraction = Field(0.0, description="probability of random erasing")
    remode: Literal["const", "rand", "pixel"] = Field("pixel", description="what erases")
    recount: Positive = Field(1, le=100, description="most erased rectangles")
    train_interpolation: str = Field("random", description="interpolation of crops in training")
    interpolation: str | None = Field(
        None, description="interpolation in evaluation; null: the model's"
    )
    crop_pct: CropFraction | None = Field(
        None, description="center crop in evaluation; null: the model's"
    )
    mean: Triple | None = Field(None, description="of the pixels; null: the model's")
    std: PositiveTriple | None = Field(None, description="of the pixels; null: the model's")

    @model_validator(mode="after")
    def _check_augmentation(self) -> Self:
        for name in ("scale", "ratio"):
            low, high = getattr(self, name)
            _refuse(not 0 < low <= high, f"{name} goes from low to high, got [{low:g}, {high:g}]")
        _refuse(
            self.no_aug and (self.aa is not None or self.reprob > 0),
            "no_aug: true cannot be combined with aa or reprob",
        )
        return self

    # --- loss
    mixup: NonNegative = Field(0.0, description="alpha of mixup")
    cutmix: NonNegative = Field(0.0, description="alpha of CutMix")
    mixup_prob: Fraction = Field(1.0, description="probability that a batch is mixed at all")
    mixup_switch_prob: Fraction = Field(0.5, description="probability of CutMix where both are on")
    mixup_mode: Literal["batch", "pair", "elem"] = Field(
        "batch", description="which samples share a draw"
    )
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
    kd_temperature: PositiveNumber = Field(1.0, description="temperature of soft distillation")
    task_loss_weight: Fraction = Field(
        0.5, description="weight of the labels; the teacher has the rest"
    )

    @model_validator(mode="after")
    def _check_loss(self) -> Self:
        for name in ("bce_sum", "bce_target_thresh", "bce_pos_weight"):
            given = bool(getattr(self, name))
            _refuse(given and not self.bce_loss, f"{name} needs bce_loss: true")
        for name in ("kd_checkpoint", "kd_model_kwargs"):
            given = bool(getattr(self, name))
            _refuse(given and not self.kd_model_name, f"{name} needs kd_model_name")
        return self

    @property
    def mixes(self) -> bool:
        """Whether batches are mixed."""
        return self.mixup > 0 or self.cutmix > 0

    # --- optimizer
    opt: OptimizerName = Field("adamw", description="any optimizer of timm's")
    lr: PositiveNumber = Field(
        1e-3, description="learning rate for the whole batch_size; nothing scales it"
    )
    weight_decay: NonNegative = Field(0.05, description="not for biases, norms, positions, masks")
    momentum: NonNegative = Field(0.9, description="where the optimizer has one")
    opt_eps: NonNegative | None = Field(None, description="null: the optimizer's")
    opt_betas: Betas | None = Field(None, description="null: the optimizer's")
    opt_kwargs: dict[str, Any] = Field({}, description="other arguments of the optimizer")
    layer_decay: PositiveNumber | None = Field(
        None, le=1, description="factor of the learning rate from layer to layer, downwards"
    )
    clip_grad: PositiveNumber | None = Field(None, description="null: no clipping")
    clip_mode: Literal["norm", "value", "agc"] = Field("norm", description="what is clipped")

    # --- schedule
    sched: Literal["cosine", "tanh", "step", "multistep", "poly", "plateau"] = Field(
        "cosine",
        description="schedule of the learning rate; all but plateau change it in every step",
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
    lr_cycle_limit: Positive = Field(1, description="number of cycles")
    lr_k_decay: NonNegative = Field(1.0, description="k of k-decay, for cosine and poly")
    lr_noise: NoiseRange | None = Field(
        None, description="where noise starts and ends, as fractions of the run"
    )
    lr_noise_pct: NonNegative = Field(0.67, description="limit of the noise")

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        _refuse(
            self.warmup_epochs >= self.epochs and not self.warmup_prefix,
            f"warmup_epochs ({self.warmup_epochs:g}) must be below epochs ({self.epochs})",
        )
        _refuse(self.min_lr > self.lr, f"min_lr ({self.min_lr:g}) is above lr ({self.lr:g})")
        low, *high = self.lr_noise or [0.0]
        _refuse(bool(high) and high < [low], f"lr_noise goes from low to high, got {self.lr_noise}")
        _refuse(
            self.sched == "plateau" and (not self.has_validation or self.val_interval > 1),
            "sched: plateau needs an evaluation after every epoch (val_split, val_interval: 1)",
        )
        return self

    # --- averaging, precision
    model_ema: bool = Field(
        False, description="keep a moving average of the weights, evaluated too"
    )
    model_ema_decay: BelowOne = Field(0.9998, description="decay of the average")
    model_ema_warmup: bool = Field(False, description="let the decay grow from 0")
    amp: bool | None = Field(None, description="mixed precision; null: what accelerate launch says")
    amp_dtype: Literal["bfloat16", "float16"] = Field(
        "bfloat16", description="dtype of mixed precision"
    )
    tf32: bool = Field(
        False, description="NVIDIA GPUs: products of float32 in TF32, which has 10 bits"
    )
    deterministic: bool = Field(
        False, description="GPUs: kernels that give the same bits every time, some of them slower"
    )
    device: MayChange[Literal["cpu", "cuda"] | None] = Field(
        None, description="null: a GPU where there is one"
    )

    @model_validator(mode="after")
    def _check_average(self) -> Self:
        _refuse(
            self.model_ema_warmup and not self.model_ema, "model_ema_warmup needs model_ema: true"
        )
        return self

    # --- the run
    output: MayChange[str] = Field("runs", description="folder of runs")
    experiment: MayChange[RunName | None] = Field(
        None, description="name of the run; null: that of the recipe file"
    )
    resume: MayChange[str | None] = Field(
        None,
        description="auto: resume where the run stopped, or begin; or a checkpoint to resume from; "
        "null: begin, and refuse a folder that holds a run",
    )
    eval_metric: Literal["top1", "top5", "loss"] = Field("top1", description="what is best")
    eval_ema: bool = Field(True, description="where there is an average, its metric decides")
    val_interval: MayChange[Positive] = Field(1, description="epochs between two evaluations")
    checkpoint_hist: MayChange[Positive] = Field(
        3, description="how many of the best checkpoints are kept"
    )
    recovery_interval: MayChange[Natural] = Field(
        0, description="steps between checkpoints within an epoch; 0: none"
    )
    max_skipped_steps: MayChange[Natural] = Field(
        10,
        description="steps of an epoch that may be skipped because loss or gradient is not finite",
    )
    collective_timeout: MayChange[PositiveNumber] = Field(
        600,
        description="several processes: seconds that a step, or a batch of an evaluation, may take "
        "before the run ends and names the process that is stuck",
    )
    log_interval: MayChange[Positive] = Field(50, description="steps between two lines of the log")
    report: MayChange[bool] = Field(
        True, description="make report.html, a page to look at, when the run ends (docs/report.md)"
    )
    log_wandb: MayChange[bool] = Field(False, description="log to Weights & Biases too")
    wandb_project: MayChange[str] = Field("vit_rpe", description="project there")

    @property
    def best_of(self) -> str:
        """The column of summary.csv that decides which checkpoint is best."""
        return f"{'ema' if self.model_ema and self.eval_ema else 'eval'}_{self.eval_metric}"

    # --- defaults that depend on other keys

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Drop keys whose null is no value, then fit the warmup and the flips to the rest."""
        values = {name: value for name, value in values.items() if not _is_unset(name, value)}
        epochs, warmup = values.get("epochs"), Recipe.model_fields["warmup_epochs"].default
        if isinstance(epochs, int) and epochs <= warmup and not values.get("warmup_prefix"):
            values.setdefault("warmup_epochs", epochs / 4)
        if values.get("hflip") is None:
            # a mirror changes no object, but turns a motion to the left into one to the right
            values["hflip"] = 0.5 if values.get("num_frames") is None else 0.0
        return values


def _refuse(wrong: bool, message: str) -> None:
    if wrong:
        raise ValueError(message)


def _is_unset(name: str, value: Any) -> bool:
    """Return whether a key is null that has no null of its own: its default applies."""
    field = Recipe.model_fields.get(name)
    return value is None and field is not None and type(None) not in get_args(field.annotation)
