from importlib import import_module

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf

import vit_rpe  # noqa: F401

TINY = [
    *("--model-arg", "img_size=32", "--model-arg", "patch_size=8", "--model-arg", "depth=1"),
    *("--model-arg", "embed_dim=24"),
]


@pytest.fixture(scope="module")
def tool():
    return import_module("vit_rpe.cli.convert")


@pytest.fixture
def run(tool):
    def run(*args):
        assert tool.main([*map(str, args)]) == 0

    return run


def tiny_vit(**options):
    shape = {"img_size": 32, "patch_size": 8, "depth": 1, "embed_dim": 24, "num_heads": 3}
    return timm.create_model("vit_tiny_patch16_224", **{**shape, "num_classes": 5, **options})


def load(directory):
    return timm.create_model(f"local-dir:{directory}", pretrained=True).eval()


def test_a_name(run, tmp_path, capsys):
    output = tmp_path / "new" / "model"
    run(
        *("vit_tiny_patch16_224", "--no-pretrained", *TINY, "--output", output),
        *("--feature-map", "favor", "--num-features", 8, "--unit-norm", "--img-size", 32, 48),
        *("--rpe", "distance", "--num-classes", 3),
    )
    printed = capsys.readouterr().out
    assert "vit_tiny_patch16_224 -> performer_rpe2d_tiny_patch16_224" in printed
    assert "resampled   pos_embed" in printed and str(output) in printed
    model = load(output)
    assert model.blocks[0].attn.features.num_features(8) == 8
    assert model.blocks[0].attn.features.unit_norm
    assert model(torch.zeros(1, 3, 32, 48)).shape == (1, 3)


def test_the_seed_decides_the_random_features(run, tmp_path):
    drawn = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        options = ("--no-pretrained", *TINY, "--feature-map", "favor", "--seed", seed)
        run("vit_tiny_patch16_224", *options, "--output", tmp_path / name)
        drawn.append(load(tmp_path / name).blocks[0].attn.features.projection)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_a_directory_and_a_file_keep_the_logits(run, tmp_path):
    source = tiny_vit().eval()
    timm.models.save_for_hf(
        source,
        str(tmp_path / "source"),
        safe_serialization=True,
        model_args={"img_size": 32, "patch_size": 8, "depth": 1, "embed_dim": 24},
    )
    softmax = ("--attention", "softmax", "--output")
    run(f"local-dir:{tmp_path / 'source'}", *softmax, tmp_path / "a")
    file = tmp_path / "source" / "model.safetensors"
    run(file, "--model-name", "vit_tiny_patch16_224", *TINY, *softmax, tmp_path / "b")
    x = torch.randn(2, 3, 32, 32)
    for name in ("a", "b"):
        torch.testing.assert_close(load(tmp_path / name)(x), source(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["vit_tiny_patch16_225"],
            "no model '.*'; nearest is 'vit_tiny_patch16_224'",
        ),
        (["local-dir:nowhere"], "there is no config.json in nowhere"),
        (["weights.pth"], "need a .safetensors file, got weights.pth"),
        (["weights.safetensors"], "there is no file weights.safetensors"),
        (["resnet18", "--no-pretrained"], "need timm's VisionTransformer, got ResNet"),
        (
            ["vit_tiny_patch16_224", "--no-pretrained", *TINY, "--num-features", "4"],
            "num_features=4 has no meaning for feature_map='relu'",
        ),
        (
            ["vit_tiny_patch16_224", "--no-pretrained", "--model-arg", "depht=1"],
            "unexpected keyword argument 'depht'",
        ),
        (
            ["vit_tiny_patch16_224", "--no-pretrained", *TINY, "--img-size", "8", "8", "8"],
            "--img-size takes 1 or 2 sides, got 3",
        ),
        (
            ["vit_base_patch32_clip_224", "--no-pretrained", *TINY, "--model-arg", "num_heads=3"],
            "no words for norm_layer=.*eps=1e-05",
        ),
    ],
)
def test_bad_input_is_one_line(run, tmp_path, args, message):
    with pytest.raises(SystemExit, match=message) as caught:
        run(*args, "--output", tmp_path / "model")
    text = str(caught.value)
    assert caught.value.code == 2
    assert text.startswith("vit-rpe convert: error: ") and "\n" not in text
    assert not (tmp_path / "model").exists()


def test_weights_that_cannot_be_had(run, tmp_path, tool, monkeypatch):
    def no_network(*args, **options):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(tool.timm, "create_model", no_network)
    with pytest.raises(SystemExit, match="could not give its pretrained weights: no route to host"):
        run("vit_tiny_patch16_224", "--output", tmp_path / "model")


def test_a_directory_of_pickles_is_refused(run, tmp_path):
    timm.models.save_for_hf(tiny_vit(), str(tmp_path), safe_serialization=False)
    with pytest.raises(SystemExit, match=r"there is no model.safetensors in"):
        run(f"local-dir:{tmp_path}", "--output", tmp_path / "model")


def test_a_folder_is_a_source_and_its_classes_keep_their_names(run, tmp_path):
    vit = tiny_vit()
    vit.pretrained_cfg = {**vit.pretrained_cfg, "label_names": list("abcde")}
    shape = {"img_size": 32, "patch_size": 8, "depth": 1, "embed_dim": 24}
    save_for_hf(vit, str(tmp_path / "vit"), safe_serialization=True, model_args=shape)
    run(tmp_path / "vit", "--output", tmp_path / "performer")
    model = load(tmp_path / "performer")
    assert model.pretrained_cfg["label_names"] == list("abcde") and model.num_classes == 5
    run(tmp_path / "vit", "--output", tmp_path / "other", "--num-classes", 2)
    assert load(tmp_path / "other").pretrained_cfg.get("label_names") is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="no checkpoint at .*empty: neither a run nor"):
        run(tmp_path / "empty", "--output", tmp_path / "third")


def test_a_pickle_with_a_model_name_is_refused(run, tmp_path):
    torch.save({}, tmp_path / "weights")
    with pytest.raises(SystemExit, match=r"need a .safetensors file, got weights"):
        run(
            tmp_path / "weights", "--model-name", "vit_tiny_patch16_224", "--output", tmp_path / "o"
        )


def test_nothing_is_overwritten_unasked(run, tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    args = ("vit_tiny_patch16_224", "--no-pretrained", *TINY, "--output", tmp_path)
    with pytest.raises(SystemExit, match="is not empty"):
        run(*args)
    run(*args, "--overwrite")
    load(tmp_path)
    with pytest.raises(SystemExit, match="is not a directory"):
        run(*args[:-1], tmp_path / "config.json")


def test_arguments_of_the_source(tool):
    assert tool.key_value("img_size=(8, 16)") == ("img_size", (8, 16))
    assert tool.key_value("global_pool=avg") == ("global_pool", "avg")
    with pytest.raises(Exception, match="need NAME=VALUE, got 'depth'"):
        tool.key_value("depth")
