"""``import_release``: the authors' networks, built here from torch's own parts, and what was saved of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from clipmend.negation import PeakPatch, PeakPatchConfig, import_release
from helpers import RandomDualEncoder

W = 16  # text width and size of the joint space: the published networks have one size for both
TEXTS = ["a dog", "no dog", "a red bus without a driver", ".", "a street with no cars and no people"]
NEAR = {"atol": 1e-6, "rtol": 1e-5}


class Corrector(nn.Module):
    """The published ECN: names, order and sizes of its parts."""

    def __init__(self, width: int = W, hidden: int = 24, heads: int = 4, states: int = 4) -> None:
        super().__init__()
        if states > 1:
            self.learned_query = nn.Parameter(torch.randn(1, 1, width))
            self.cross_attn = nn.MultiheadAttention(width, heads, batch_first=True)
            self.attn_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(states * width, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Dropout(0.1),
            nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Dropout(0.1), nn.Linear(hidden, width),
        )  # fmt: skip
        self.log_alpha = nn.Parameter(torch.tensor(-0.3))

    def forward(self, embedding: Tensor, peak: Tensor, anchor: Tensor, reads: str = "eqam") -> Tensor:
        """One text: ``[D]`` normalised, token states ``[T, W]`` of both layers, the last one the sentence's."""
        parts = [peak[-1]]
        if "q" in reads:
            parts.append(self.attn_ln(self.cross_attn(self.learned_query, peak[None], peak[None])[0][0, 0]))
        if "a" in reads:
            parts.append(anchor[-1])
        if "m" in reads:
            parts.append(peak.mean(0))
        return F.normalize(embedding + self.log_alpha.exp() * self.mlp(torch.cat(parts)), dim=0)


class Scorer(nn.Module):
    """The published SCN."""

    def __init__(self, width: int = W, layers: int = 2, context: int = 8) -> None:
        super().__init__()

        def summary(inputs: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(inputs, 2 * context), nn.LayerNorm(2 * context), nn.GELU(), nn.Linear(2 * context, context)
            )

        self.text_encoder, self.cross_encoder = summary(layers * width), summary(width)
        self.correction_head = nn.Sequential(
            nn.Linear(layers + 2 * context, context), nn.GELU(), nn.Dropout(0.1), nn.Linear(context, 1)
        )

    def forward(self, texts: Tensor, image: Tensor) -> Tensor:
        """One text's layers ``[L, D]`` and one image ``[D]``, all normalised."""
        parts = [texts @ image, self.text_encoder(texts.flatten()), self.cross_encoder(texts[-1] * image)]
        return texts[-1] @ image + 0.2 * torch.tanh(self.correction_head(torch.cat(parts)))[0]


def build(kind: type[nn.Module], seed: int = 0, **sizes: int) -> Any:
    torch.manual_seed(seed)
    network = kind(**sizes)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network.eval()


ECN_CONFIG = {
    "model_type": "embedding_corrector", "clip_model": "ViT-B-32", "clip_pretrained": "openai", "embed_dim": W, "hidden_dim": 24,
    "num_heads": 4, "dropout": 0.1, "no_anchor": False, "cls_only": False, "no_pool": False, "target_layer": 3, "anchor_layer": 2,
}  # fmt: skip
SCN_CONFIG = {
    "clip_model": "ViT-B-32", "embed_dim": W, "context_dim": 8, "max_correction": 0.2, "layers": [2, 4], "use_gate": False,
    "correction_mode": "fixed", "use_token_features": False, "token_num_heads": 8,
}  # fmt: skip


def saved(network: nn.Module, path: Path, config: dict[str, Any] | None, names: Callable[[str], str] = str) -> Path:
    state = {names(name): tensor for name, tensor in network.state_dict().items()}
    torch.save({"epoch": 4, "model_state_dict": state} | ({} if config is None else {"config": config}), path)
    return path


@pytest.fixture
def encoder() -> RandomDualEncoder:
    return RandomDualEncoder(width=W, embed_dim=W)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    ecn = saved(build(Corrector), tmp_path / "peakpatch_ecn.pt", ECN_CONFIG)
    return ecn, saved(build(Scorer, 1), tmp_path / "peakpatch_scn.pt", SCN_CONFIG)


@torch.no_grad()
def plain(encoder: RandomDualEncoder, text: str, ecn: Any, scn: Any, image: Tensor, reads: str = "eqam") -> tuple[Tensor, Tensor]:
    states = encoder.text_states([text], [2, 3, 4])
    valid = states.mask[0]
    corrected = ecn(F.normalize(states.embedding[0], dim=0), states.tokens_at(3)[0][valid], states.tokens_at(2)[0][valid], reads)
    context = torch.stack([F.normalize(encoder.project(states.eos_at(2))[0], dim=0), corrected])
    return corrected, scn(context, image)


def test_the_published_files_give_the_published_function(
    encoder: RandomDualEncoder, files: tuple[Path, Path], tmp_path: Path
) -> None:
    patch = import_release(*files, encoder=encoder)
    assert (patch.config.anchor, patch.config.peak, patch.config.scn_layers) == (2, 3, (2, 4))
    assert (patch.config.hidden, patch.config.heads, patch.config.context, patch.config.bound) == (24, 4, 8, 0.2)
    assert patch.config.objective == "released"
    images = F.normalize(torch.randn(3, W, generator=torch.Generator().manual_seed(2)), dim=-1)
    mended = patch.apply(encoder)
    embeddings, scores = mended.encode_texts(TEXTS), mended.score(images, TEXTS)
    for row, text in enumerate(TEXTS):
        for column, image in enumerate(images):
            corrected, score = plain(encoder, text, build(Corrector), build(Scorer, 1), image)
            assert_close(embeddings[row], corrected, **NEAR)
            assert_close(scores[column, row], score, **NEAR)
    assert (embeddings - encoder.encode_texts(TEXTS)).abs().max() > 0.01
    patch.save_pretrained(tmp_path / "patch")
    read = PeakPatch.from_pretrained(tmp_path / "patch").apply(encoder)
    assert torch.equal(read.score(images, TEXTS), scores)
    imported = PeakPatch.from_pretrained(tmp_path / "patch").metrics["imported"]
    assert imported["scn"]["file"] == "peakpatch_scn.pt"
    assert len(imported["ecn"]["sha256"]) == 64


def test_published_sizes() -> None:
    def count(network: nn.Module) -> int:
        return sum(p.numel() for p in network.parameters())

    assert count(Corrector(512, 1024, 8)) == 4_728_833
    assert [count(Scorer(512, layers, 128)) for layers in (2, 3)] == [493_825, 625_025]


def test_tied_to_an_encoder_or_not(encoder: RandomDualEncoder, files: tuple[Path, Path]) -> None:
    other = RandomDualEncoder(width=W, embed_dim=W, seed=9)
    with pytest.raises(ValueError, match="called random too"):
        import_release(*files, encoder=encoder).apply(other)
    free = import_release(*files)
    assert free.backbone == "open_clip:ViT-B-32-quickgelu/openai"
    free.apply(other)
    with pytest.raises(ValueError, match="text_width is 16 in the config but 24"):
        free.apply(RandomDualEncoder())
    with pytest.raises(ValueError, match="end with the last text layer"):
        import_release(*files, encoder=RandomDualEncoder(width=W, embed_dim=W, layers=6))


def test_the_ecn_alone(encoder: RandomDualEncoder, files: tuple[Path, Path]) -> None:
    patch = import_release(files[0], encoder=encoder)
    assert patch.scn is None
    whole = import_release(*files, encoder=encoder)
    assert torch.equal(patch.apply(encoder).encode_texts(TEXTS), whole.apply(encoder).encode_texts(TEXTS))
    with pytest.raises(ValueError, match=r"say scn_layers: pass config=PeakPatchConfig\(scn_layers=\.\.\.\)"):
        import_release(files[0])
    assert import_release(files[0], config=PeakPatchConfig(scn_layers=(4,))).config.scn_layers == (4,)


def test_the_checkpoint_of_joint_training(encoder: RandomDualEncoder, files: tuple[Path, Path], tmp_path: Path) -> None:
    left_out = dict.fromkeys(("ec_cls_only", "ec_no_anchor", "ec_no_pool", "sc_use_tokens"), False)
    config = {"target_layer": 3, "anchor_layer": 2, "sc_layers": [2, 4], **left_out, "clip_model": "ViT-B-32", "lr": 1e-4}
    states = {"ec_state_dict": build(Corrector).state_dict(), "sc_state_dict": build(Scorer, 1).state_dict()}
    torch.save({"epoch": 1, **states, "optimizer_state_dict": {"state": {}}, "config": config}, tmp_path / "joint.pt")
    patch = import_release(tmp_path / "joint.pt", config=PeakPatchConfig(heads=4), encoder=encoder)
    expected = import_release(*files, encoder=encoder)
    assert torch.equal(patch.apply(encoder).encode_texts(TEXTS), expected.apply(encoder).encode_texts(TEXTS))
    assert patch.scn is not None


@pytest.mark.parametrize(("states", "reads", "flags"), [
    (3, "eqm", {"no_anchor": True}), (3, "eqa", {"no_pool": True}), (2, "eq", {"no_anchor": True, "no_pool": True}),
    (1, "e", {"no_anchor": True, "cls_only": True}),
])  # fmt: skip
def test_ablations(encoder: RandomDualEncoder, tmp_path: Path, states: int, reads: str, flags: dict[str, bool]) -> None:
    network = build(Corrector, states=states)
    patch = import_release(saved(network, tmp_path / "e.pt", {**ECN_CONFIG, **flags}), encoder=encoder)
    image = F.normalize(torch.ones(W), dim=0)
    for text in TEXTS:
        corrected, _ = plain(encoder, text, network, build(Scorer), image, reads)
        assert_close(patch.apply(encoder).encode_texts([text])[0], corrected, **NEAR)


def renamed(name: str) -> str:
    swaps = {"learned_query": "probe", "cross_attn": "reader", "attn_ln": "after", "mlp": "deviation", "text_encoder": "a_text",
             "cross_encoder": "b", "correction_head": "out"}  # fmt: skip
    first, dot, rest = name.partition(".")
    return swaps.get(first, first) + dot + rest


@pytest.mark.parametrize("form", ["pt", "safetensors", "module"])
@pytest.mark.parametrize(("width", "hidden"), [(16, 24), (16, 16)])  # equal sizes: only the order tells the norms apart
def test_other_names_are_told_apart(encoder: RandomDualEncoder, tmp_path: Path, form: str, width: int, hidden: int) -> None:
    ecn, scn = build(Corrector, hidden=hidden), build(Scorer, 1)
    config = PeakPatchConfig(peak=3, anchor=2, scn_layers=(2, 4), heads=4)
    paths = [tmp_path / "e.pt", tmp_path / "s.pt"]
    for network, path in zip((ecn, scn), paths, strict=True):
        saved(network, path, None, (lambda name: "module." + renamed(name)) if form == "module" else renamed)
    if form == "safetensors":
        paths = [path.with_suffix(".safetensors") for path in paths]
        for network, path in zip((ecn, scn), paths, strict=True):
            save_file({renamed(name): tensor for name, tensor in network.state_dict().items()}, path)
    expected = import_release(
        saved(ecn, tmp_path / "e2.pt", ECN_CONFIG), saved(scn, tmp_path / "s2.pt", SCN_CONFIG), encoder=encoder
    )
    patch = import_release(*paths, config=config, encoder=encoder)
    assert patch.config == expected.config
    for ours, theirs in ((patch.ecn, expected.ecn), (patch.scn, expected.scn)):
        assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True))


def rebuilt(network: nn.Module, path: Path, change: Callable[[dict[str, Tensor]], Any], config: Any = None) -> Path:
    state = dict(network.state_dict())
    changed = change(state)
    return_state = changed if isinstance(changed, dict) else state
    torch.save({"model_state_dict": return_state, "config": config or ECN_CONFIG}, path)
    return path


def square_shuffled(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every linear layer of one size, out of order, under names that say nothing."""
    names = {"mlp.0": "c", "mlp.1": "n1", "mlp.4": "a", "mlp.5": "n2", "mlp.8": "b"}
    moved = {}
    for name, tensor in state.items():
        module, _, leaf = name.rpartition(".")
        moved[f"{names[module]}.{leaf}" if module in names else name] = tensor
    return {name: moved[name] for name in sorted(moved)}


@pytest.mark.parametrize(("change", "message"), [
    (lambda s: s.pop("cross_attn.in_proj_bias"), r"lacks a weight for ecn\.attention\.in_proj_bias"),
    (lambda s: s.pop("learned_query"), r"0 weights could be the learned query of 16 numbers \(none\)"),
    (lambda s: s | {"second": torch.zeros(W), "q": s.pop("learned_query")}, r"2 weights could be the learned query .*second, q"),
    (lambda s: s | {"alpha": s.pop("log_alpha")}, r"by its name .*\(alpha\); name it with key_map\['ecn\.log_alpha'\]"),
    (lambda s: s | {"extra.weight": torch.zeros(3, 3), "extra.bias": torch.zeros(3)}, "three linear layers .* but here are 4"),
    (lambda s: s | {"spare": torch.zeros(3)}, "nothing in the ECN corresponds to spare"),
    (lambda s: s | {"cross_attn.in_proj_bias": torch.zeros(5)}, r"ecn\.attention\.in_proj_bias is \[5\], not \[48\]"),
    (lambda s: s | {"mlp.0.weight": torch.zeros(24, 70)}, "reads 70 numbers, which is not 2 to 4 states of 16"),
    (lambda s: s | {"log_alpha": torch.tensor(float("inf"))}, "log_alpha is not finite"),
])  # fmt: skip
def test_weights_that_do_not_fit(tmp_path: Path, change: Any, message: str) -> None:
    path = rebuilt(build(Corrector), tmp_path / "ecn.pt", change)
    with pytest.raises(ValueError, match=message) as caught:
        import_release(path, config=PeakPatchConfig(scn_layers=(4,)))
    assert "ecn.pt" in str(caught.value)


def test_ambiguous_layers_are_settled_by_key_map(tmp_path: Path, encoder: RandomDualEncoder) -> None:
    network = build(Corrector, hidden=W, states=1)
    config = {**ECN_CONFIG, "cls_only": True, "no_anchor": True}
    path = rebuilt(network, tmp_path / "ecn.pt", square_shuffled, config)
    with pytest.raises(ValueError, match=r"layer norms lie between .* name all five layers with key_map\['ecn\.mlp\.0'\]"):
        import_release(path, encoder=encoder)
    key_map = {"ecn.mlp.0": "c", "ecn.mlp.1": "n1", "ecn.mlp.4": "a", "ecn.mlp.5": "n2", "ecn.mlp.8": "b"}
    patch = import_release(path, encoder=encoder, key_map=key_map)
    expected = import_release(saved(network, tmp_path / "plain.pt", config), encoder=encoder)
    assert torch.equal(patch.apply(encoder).encode_texts(TEXTS), expected.apply(encoder).encode_texts(TEXTS))


def test_a_single_layer_score_correction(tmp_path: Path, files: tuple[Path, Path]) -> None:
    network = build(Scorer, 1, layers=1)
    config = {**SCN_CONFIG, "layers": [4]}
    swaps = {"text_encoder": "a", "cross_encoder": "b", "correction_head": "h"}

    def names(name: str) -> str:
        return swaps[name.partition(".")[0]] + "." + name.partition(".")[2]

    path = saved(network, tmp_path / "scn.pt", config, names)
    with pytest.raises(ValueError, match=r"a and b are alike, .* key_map\['scn\.text_mlp'\]"):
        import_release(files[0], path)
    patch = import_release(files[0], path, key_map={"scn.text_mlp": "a"})
    assert patch.scn is not None
    assert torch.equal(patch.scn.text_mlp[0].weight, network.text_encoder[0].weight)
    with pytest.raises(ValueError, match=r"has no 'nowhere', which key_map gives for scn\.text_mlp"):
        import_release(files[0], path, key_map={"scn.text_mlp": "nowhere"})
    with pytest.raises(ValueError, match="key_map names 'text_mlp'"):
        import_release(files[0], path, key_map={"text_mlp": "a"})


@pytest.mark.parametrize(("part", "setting", "message"), [
    ("scn", {"correction_mode": "two_head"}, "variant .* correction_mode = 'two_head'"),
    ("scn", {"use_gate": True}, "variant .* use_gate = True"),
    ("scn", {"layers": [2, 3, 4]}, r"scn_layers are \[2, 3, 4\], but the SCN reads 32 numbers a text, not 3 embeddings"),
    ("ecn", {"no_anchor": True}, "first layer reads 4 states"),
    ("ecn", {"anchor_layer": 4}, "the anchor must not lie after the peak"),
])  # fmt: skip
def test_settings_that_do_not_fit(files: tuple[Path, Path], tmp_path: Path, part: str, setting: Any, message: str) -> None:
    ecn, scn = files
    if part == "ecn":
        ecn = saved(build(Corrector), tmp_path / "other.pt", {**ECN_CONFIG, **setting})
    else:
        scn = saved(build(Scorer, 1), tmp_path / "other.pt", {**SCN_CONFIG, **setting})
    with pytest.raises(ValueError, match=message):
        import_release(ecn, scn)


def test_what_the_config_must_say_and_must_not_contradict(tmp_path: Path, files: tuple[Path, Path]) -> None:
    bare = saved(build(Corrector), tmp_path / "bare.pt", None)
    with pytest.raises(ValueError, match=r"say peak: pass config=PeakPatchConfig\(peak=\.\.\.\)"):
        import_release(bare, files[1])
    with pytest.raises(ValueError, match=r"config says peak = 1, but the file peakpatch_ecn\.pt or its weights say 3"):
        import_release(*files, config=PeakPatchConfig(peak=1))
    with pytest.raises(ValueError, match="config says hidden = 99"):
        import_release(*files, config=PeakPatchConfig(hidden=99))
    three = saved(build(Corrector, states=3), tmp_path / "three.pt", None)
    layers = {"peak": 3, "anchor": 2, "scn_layers": (2, 4), "heads": 4}
    with pytest.raises(ValueError, match="nothing says whether the anchor or the mean is left out"):
        import_release(three, config=PeakPatchConfig(**layers))
    assert not import_release(three, config=PeakPatchConfig(**layers, use_scn=True, use_pool=False)).config.use_pool
    cls_only = saved(build(Corrector, states=1), tmp_path / "cls.pt", {**ECN_CONFIG, "cls_only": True})
    with pytest.raises(ValueError, match="variant that this library does not have"):
        import_release(cls_only, files[1])
    torch.save({"model_state_dict": {}}, tmp_path / "empty.pt")
    with pytest.raises(ValueError, match="holds no weights"):
        import_release(tmp_path / "empty.pt")
    with pytest.raises(OSError, match="there is no file"):
        import_release(tmp_path / "nowhere.pt")
    with pytest.raises(ValueError, match="an SCN is two summaries"):
        import_release(files[0], files[0])
