"""One model in several threads: image sizes, packs and streams do not get in each other's way."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import timm
import torch
from torch import Tensor

from vit_rpe.models import MaskedViT

CALLS = 200
SMALL = {"embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5, "patch_size": 8}
SIZES = [(24, 16), (16, 24), (16, 16)]


def image_model(**options) -> MaskedViT:
    name = "performer_rpe2d_tiny_patch16_224"
    args = {**SMALL, "img_size": 16, "dynamic_img_size": True, "rpe_init": "decay", **options}
    return timm.create_model(name, **args).eval()


def in_threads(jobs: list, calls: int) -> list[str]:
    """What went wrong in `calls` calls of each job, each in a thread of its own."""

    def run(job) -> list[str]:
        wrong = []
        for i in range(calls):
            try:
                with torch.no_grad():
                    difference = job(i)
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error}")
            else:
                wrong += [f"off by {difference}"] if difference > 1e-5 else []
        return wrong

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [message for messages in pool.map(run, jobs) for message in messages]


@pytest.mark.parametrize("path", ["explicit", "product"])
def test_sizes_and_packs(path):
    model = image_model(path=path)
    names = list(model.state_dict())
    images = [torch.randn(2, 3, *size) for size in SIZES]
    pack = [image[0] for image in images]
    with torch.no_grad():
        alone = [model(image) for image in images]
        packed = torch.stack([model(image[None])[0] for image in pack])

    def mixed(first: int):
        def job(call: int) -> float:
            if call % 4 == 3:
                return float((model.forward_packed(pack) - packed).abs().max())
            i = (first + call) % len(SIZES)
            return float((model(images[i]) - alone[i]).abs().max())

        return job

    assert in_threads([mixed(0), mixed(1), mixed(2)], CALLS) == []
    assert list(model.state_dict()) == names


def test_streams():
    args = {"num_frames": 8, "causal_time": True, "rpe": "exponential", "rpe_init": "decay"}
    model = timm.create_model(
        "performer_rpe3d_tiny_patch16_224", **SMALL, **args, img_size=16
    ).eval()
    clips = torch.randn(3, 1, 3, 8, 16, 16)

    def logits(clip: Tensor) -> Tensor:
        stream = model.stream()
        return torch.stack([stream(frames) for frames in clip.split(2, 2)])

    with torch.no_grad():
        alone = [logits(clip) for clip in clips]
        whole = model(clips[0])

    def streamed(i: int):
        return lambda call: float((logits(clips[i]) - alone[i]).abs().max())

    def of_the_whole_clip(call: int) -> float:
        return float((model(clips[0]) - whole).abs().max())

    assert in_threads([streamed(1), streamed(2), of_the_whole_clip], CALLS) == []


def test_recomputation_in_another_thread_finds_the_same_tokens():
    model = image_model(path="explicit").train()
    model.set_grad_checkpointing()
    image = torch.randn(2, 3, *SIZES[0])
    with ThreadPoolExecutor(1) as pool:
        results = []
        for other_thread in (False, True):
            model.zero_grad()
            loss = model(image).square().sum()
            model(torch.randn(2, 3, *SIZES[1]))  # another size passes before the backward pass
            (pool.submit(loss.backward).result if other_thread else loss.backward)()
            results.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(results[0]) == len(results[1]) > 10
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(here, there)


def test_dynamic_sizes_are_checkpointed():
    """timm does not checkpoint blocks that it hands a mask; ours are recomputed all the same."""
    model = image_model(path="explicit").train()
    model.set_grad_checkpointing()
    calls = []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model(torch.randn(2, 3, *SIZES[0])).sum().backward()
    assert len(calls) == 2
