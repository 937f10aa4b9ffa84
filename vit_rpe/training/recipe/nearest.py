"""The recipe key that a wrong one was probably meant to be."""

from collections.abc import Iterable

from vit_rpe import messages

ALIASES = {  # what other trainers, and people, call a key: going by letters would mislead
    "lr": ("learning_rate", "base_lr", "lr_base", "blr", "max_lr"),
    "weight_decay": ("wd", "decay"),
    "batch_size": ("batch", "bs", "train_batch_size", "per_device_train_batch_size"),
    "validation_batch_size": ("val_batch_size", "eval_batch_size", "per_device_eval_batch_size"),
    "grad_accum_steps": ("gradient_accumulation_steps", "accum_iter", "accumulate_grad_batches"),
    "epochs": ("num_epochs", "max_epochs", "num_train_epochs"),
    "workers": ("num_workers", "n_workers", "dataloader_num_workers", "j"),
    "model": ("arch", "architecture", "model_name", "backbone"),
    "model_kwargs": ("model_args",),
    "num_classes": ("nb_classes", "n_classes", "classes", "num_labels"),
    "img_size": ("image_size", "input_size", "imgsz", "resolution", "size"),
    "initial_checkpoint": ("checkpoint", "weights", "finetune", "init_from", "load_from"),
    "data_dir": ("data", "dataset", "dataset_dir", "data_path", "root", "path"),
    "opt": ("optimizer", "optimiser", "optim"),
    "opt_betas": ("betas", "adam_betas"),
    "opt_eps": ("eps", "adam_epsilon"),
    "sched": ("scheduler", "lr_scheduler", "lr_scheduler_type", "schedule"),
    "warmup_epochs": ("warmup", "warmup_steps", "warmup_ratio"),
    "clip_grad": ("max_grad_norm", "gradient_clip_val", "grad_clip", "grad_norm", "clip"),
    "smoothing": ("label_smoothing", "label_smoothing_factor"),
    "aa": ("auto_augment", "autoaugment", "rand_augment", "randaugment"),
    "reprob": ("re_prob", "random_erase", "random_erasing"),
    "drop": ("dropout", "drop_rate"),
    "drop_path": ("drop_path_rate", "stochastic_depth"),
    "model_ema": ("ema",),
    "model_ema_decay": ("ema_decay",),
    "amp": ("mixed_precision", "precision", "fp16", "bf16", "half"),
    "amp_dtype": ("dtype",),
    "torchcompile": ("compile", "torch_compile"),
    "grad_checkpointing": ("gradient_checkpointing", "checkpoint_activations"),
    "output": ("output_dir", "out_dir", "save_dir", "log_dir", "work_dir", "project"),
    "experiment": ("name", "run_name", "exp_name", "run"),
    "log_interval": ("logging_steps", "print_freq", "log_every"),
    "recovery_interval": ("save_steps", "save_every"),
    "log_wandb": ("wandb", "report_to"),
}
_MEANT = {alias: key for key, aliases in ALIASES.items() for alias in aliases}


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; nearest is 'x'`, or nothing if no known name is close."""
    known = list(known)
    meant = _MEANT.get(name.lower().replace("-", "_"))
    return messages.nearest(meant if meant in known else name, known)
