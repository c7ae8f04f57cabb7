"""``PeakPatch``: the trained networks with all that is needed to use, keep, check and share them."""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from clipmend.backbones.base import DualEncoder, Fingerprint
from clipmend.backbones.hub import hub_problem
from clipmend.negation.assembly import check_fit, misfit, networks_of, part_of
from clipmend.negation.card import model_card
from clipmend.negation.config import PeakPatchConfig
from clipmend.negation.files import locate_patch, read_patch, write_patch
from clipmend.negation.mended import Mended
from clipmend.negation.mismatch import MismatchError, check_sizes, mismatch_of, remedy
from clipmend.negation.networks import EmbeddingCorrectionNetwork, ScoreCorrectionNetwork

if TYPE_CHECKING:
    from clipmend.negation.diagnosis import Diagnosis
    from clipmend.negation.export import ExportReport

__all__ = ["Mended", "PeakPatch"]

Model = TypeVar("Model")


class PeakPatch:
    """A patch for one frozen dual encoder: small networks that read its middle text layers and mend its text embeddings.

    Made by :func:`clipmend.fit`; :meth:`apply` puts it on the encoder. On disk it is a folder: ``config.json`` (every
    hyper-parameter, the backbone's name and fingerprint, versions, digest of the training data, metrics), ``model.safetensors``
    and ``README.md``.

    Args:
        config: with layers and sizes filled in (:meth:`PeakPatchConfig.resolved`).
        ecn: the embedding correction network; ``None``: a new one, which corrects next to nothing until it is trained.
        scn: the score correction network; ``None``: a new one if ``config.use_scn`` and ``ecn`` is ``None``, else none.
        backbone: name of the encoder it was fitted on.
        fingerprint: digests of that encoder. An empty digest is not compared: leave ``image`` empty for a patch that is not tied
            to an image side.
        metrics: what was measured, for the config and the card: numbers, text, and nested mappings or lists of them.
        training_data: digest of what it was trained on.
        command: the command that made it, for the card.

    Raises:
        ValueError: a config with layers or sizes left open, or networks that do not fit it.

    Example:
        >>> encoder = clipmend.load("scenes")
        >>> mended = PeakPatch.from_pretrained("scenes").apply(encoder)
        >>> scores = mended.score(images, ["a street with no cars"])
    """

    def __init__(
        self,
        config: PeakPatchConfig,
        ecn: EmbeddingCorrectionNetwork | None = None,
        scn: ScoreCorrectionNetwork | None = None,
        *,
        backbone: str,
        fingerprint: Fingerprint,
        metrics: Mapping[str, Any] | None = None,
        training_data: str = "",
        command: str = "",
    ) -> None:
        if not config.is_resolved:
            raise ValueError("the config leaves layers or sizes open: fill them in with config.resolved(encoder)")
        new_ecn, new_scn = networks_of(config)
        self.config = config
        self.scn = new_scn if ecn is None and scn is None else scn
        self.ecn = new_ecn if ecn is None else ecn
        for name, given, new in (("ECN", ecn, new_ecn), ("SCN", scn, new_scn)):
            if given is not None and new is not None and (wrong := misfit(given.state_dict(), new)):
                raise ValueError(f"the {name} is not the one that the config describes: {wrong}")
        if (self.scn is not None) != config.use_scn:
            raise ValueError(f"use_scn is {config.use_scn} in the config, but there is {'an' if self.scn else 'no'} SCN")
        self.backbone, self.fingerprint = backbone, fingerprint
        self.metrics: dict[str, Any] = dict(metrics or {})
        self.training_data, self.command = training_data, command

    @classmethod
    def untrained(
        cls, encoder: DualEncoder, config: PeakPatchConfig | None = None, diagnosis: Diagnosis | None = None
    ) -> PeakPatch:
        """A patch with new networks, seeded by the config, for ``encoder``: where training starts."""
        resolved = (config or PeakPatchConfig()).resolved(encoder, diagnosis)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(resolved.seed)
            return cls(resolved, backbone=encoder.name, fingerprint=encoder.fingerprint)

    def __repr__(self) -> str:
        c = self.config
        layers = f"anchor={c.anchor}, peak={c.peak}, scn_layers={c.scn_layers}"
        return f"PeakPatch(backbone={self.backbone!r}, {layers}, parameters={self.num_parameters:,})"

    @property
    def num_parameters(self) -> int:
        """Parameters of both networks."""
        networks = [self.ecn] if self.scn is None else [self.ecn, self.scn]
        return sum(p.numel() for network in networks for p in network.parameters())

    # ---- use --------------------------------------------------------------------------------------------------------------

    def apply(
        self, encoder: DualEncoder, strength: float = 1.0, gate: bool | None = None, *, allow_mismatch: bool = False
    ) -> Mended:
        """Put the patch on its backbone.

        Args:
            encoder: the backbone it was fitted on. It is not changed.
            strength: multiplies the learned alpha and the SCN's correction; 0 returns the backbone's tensors untouched.
            gate: leave captions without negation cue exactly as they are (English only); ``None``: what the config says, and in a
                search yes (:class:`~clipmend.search.Searcher`).
            allow_mismatch: warn instead of refusing an encoder with another fingerprint; sizes and layers must fit all the same.

        Returns:
            a :class:`Mended` encoder, usable wherever a dual encoder is.

        Raises:
            ValueError: another encoder than the patch was fitted on, or a negative strength.
            TypeError: not a dual encoder.
        """
        if not isinstance(encoder, DualEncoder):
            raise TypeError(f"apply needs a DualEncoder, not {type(encoder).__name__}: wrap a model with clipmend.load(model)")
        if isinstance(encoder, Mended):
            raise ValueError("this encoder already carries a patch: apply the other one to mended.encoder")
        if not (math.isfinite(strength) and strength >= 0):
            raise ValueError(f"strength must be a number of at least 0, not {strength}")
        check_sizes(self, encoder)
        mismatch = mismatch_of(self, encoder.name, encoder.fingerprint)
        if mismatch and not allow_mismatch:
            raise MismatchError(f"{mismatch} {remedy(encoder)} (In Python, allow_mismatch=True tries this one regardless.)")
        if mismatch:
            warnings.warn(mismatch, stacklevel=2)
        return Mended(encoder, self, strength, gate)

    def attach(
        self,
        model: Model,
        *,
        strength: float = 1.0,
        gate: bool | None = None,
        tokenizer: Any = None,
        processor: Any = None,
        allow_mismatch: bool = False,
    ) -> Model:
        """Put the patch on a live model, for code that knows nothing of this library.

        The model's own methods then give corrected text embeddings, at the length that the plain ones had: ``get_text_features``
        and ``forward`` of transformers' CLIP and SigLIP (and of their text models with a projection), ``encode_text`` and
        ``forward`` of open_clip, ``encode``, ``encode_query`` and ``encode_document`` of sentence-transformers. The image side, the
        hidden states, the state dict and what ``save_pretrained`` writes stay as they are. The correction of scores (SCN) is no
        part of it.

        A pipeline of diffusers that draws from a pooled CLIP text embedding (unCLIP, Stable unCLIP, Kandinsky 2.2's prior, the
        pooled input of SDXL) is attached to at the text encoder that the patch was fitted on; texts of no words stay as they are.

        Threads may share an attached model, a pickled one carries its patch into another process, and moving or casting the
        model moves the correction along (it computes in float32). Under ``torch.compile`` the text side runs uncompiled.

        Args:
            model: a ``CLIPModel``, ``SiglipModel``, ``CLIPTextModelWithProjection`` or ``SiglipTextModel``; a ``CLIP`` or
                ``CustomTextCLIP`` of open_clip; a ``SentenceTransformer`` of a text encoder or of a CLIP; a pipeline of diffusers.
            strength: multiplies the learned alpha; 0 runs the model's own methods untouched.
            gate: leave texts without negation cue exactly as they are (English only, read from the token ids); ``None``: what the
                config says.
            tokenizer: the model's tokenizer, where it does not lie beside the model. CLIP is then also checked by it; SigLIP
                cannot do without.
            processor: a transformers model's processor or image processor, or open_clip's evaluation transform, to check the image
                side by; for open_clip only where the patch was fitted on a model that was loaded with ``preprocess=``.
            allow_mismatch: warn instead of refusing a model with another fingerprint; sizes and layers must fit all the same.

        Returns:
            the model itself.

        Raises:
            ValueError: another model than the patch was fitted on, one that carries a patch already, or of a kind that cannot
                be mended.
            TypeError: not a model, or an encoder of this library (use :meth:`apply`).

        Example:
            >>> model = CLIPModel.from_pretrained("openai/clip-vit-base-patch32")
            >>> patch.attach(model).get_text_features(**inputs).pooler_output  # corrected
        """
        from clipmend.negation.attach import attach

        options: dict[str, Any] = {"tokenizer": tokenizer, "processor": processor, "allow_mismatch": allow_mismatch}
        return attach(self, model, strength=strength, gate=gate, **options)

    @staticmethod
    def detach(model: Model) -> Model:
        """Take off whatever patch a live model carries; its methods are the original ones again.

        Returns:
            the model itself.

        Raises:
            ValueError: it carries none.
        """
        from clipmend.negation.attach import detach

        return detach(model)

    def attached(self, model: Model, **options: Any) -> AbstractContextManager[Model]:
        """:meth:`attach` for the length of a ``with`` block; ``options`` are its keyword arguments.

        Example:
            >>> with patch.attached(model):
            ...     scores = model(**inputs).logits_per_image
        """
        from clipmend.negation.attach import attached

        return attached(self, model, **options)

    def export_onnx(
        self,
        encoder: DualEncoder,
        folder: str | os.PathLike[str],
        *,
        strength: float = 1.0,
        normalize: bool = True,
        int8: bool = False,
        texts: Sequence[str] | None = None,
        allow_mismatch: bool = False,
    ) -> ExportReport:
        """Write the mended text side, and the score correction, as ONNX files for runtimes without PyTorch (extra ``onnx``).

        ``text.onnx`` maps ``input_ids`` and ``attention_mask``, int64 ``[B, T]``, to ``text_embeds`` ``[B, D]`` (corrected),
        ``plain_text_embeds`` ``[B, D]`` and, where the patch has an SCN, ``contexts`` ``[B, L, D]``. ``B`` is free and ``T`` is 2
        to the context length (encoders that attend to their padding, such as SigLIP: the context length). With an SCN,
        ``scores_pairs.onnx`` scores ``images [P, D]`` against ``contexts [P, L, D]``, and ``scores_matrix.onnx`` ``images
        [N, D]`` against ``contexts [M, L, D]``. Beside them: the tokenizer, ``export.json``, and a ``README.md`` that shows how
        they are used. Every graph is compared with PyTorch before anything gets its name. There is no gate in a graph: it reads
        texts.

        Args:
            encoder: the backbone that the patch was fitted on, in float32.
            folder: a new or empty folder, or an earlier export (replaced; other files in it are kept).
            strength: multiplies the learned alpha and the SCN's correction.
            normalize: give unit vectors; ``False``: at the length of the plain embedding.
            int8: also write ``text.int8.onnx``, dynamically quantised, and measure how near it comes.
            texts: captions to measure that by; default: 360 plain and negated ones.
            allow_mismatch: as for :meth:`apply`.

        Returns:
            sizes, and differences from PyTorch.

        Raises:
            ImportError: the extra ``onnx`` is missing.
            ValueError: another encoder than the patch was fitted on, one that is not built on a :class:`TextTower`, in half
                precision or in training mode; a folder that holds something else; or a graph that does not agree with PyTorch.
        """
        from clipmend.negation.export import export_onnx

        options: dict[str, Any] = {"normalize": normalize, "int8": int8, "texts": texts, "allow_mismatch": allow_mismatch}
        return export_onnx(self, encoder, folder, strength=strength, **options)

    # ---- keep -------------------------------------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | os.PathLike[str], dtype: torch.dtype = torch.float32) -> Path:
        """Write the patch to a folder: written beside and renamed into place, never half a patch under its name.

        Args:
            folder: a new or empty folder, or one that holds a patch already (its three files are replaced, others are kept).
            dtype: ``torch.float32``, or ``torch.float16`` or ``torch.bfloat16`` for half the size (reading gives float32 again).

        Returns:
            the folder.

        Raises:
            ValueError: a folder that holds something else, weights that are not finite or do not fit ``dtype``.
        """
        tensors = {f"ecn.{name}": value for name, value in self.ecn.state_dict().items()}
        if self.scn is not None:
            tensors |= {f"scn.{name}": value for name, value in self.scn.state_dict().items()}
        described = {
            "config": self.config.to_dict(),
            "backbone": {"name": self.backbone, "fingerprint": self.fingerprint.to_dict()},
            "metrics": self.metrics,
            "training_data": self.training_data,
            "command": self.command,
        }
        return write_patch(Path(folder), described, tensors, lambda: model_card(self), dtype)

    @classmethod
    def from_pretrained(
        cls, name: str | os.PathLike[str], *, revision: str | None = None, token: str | bool | None = None
    ) -> PeakPatch:
        """Read a patch.

        Args:
            name: ``"scenes"`` or ``"photos"`` (bundled), a folder, or the id of a repository on the hub (``"owner/name"``). A
                folder of your own called like a bundled patch is ``"./scenes"``.
            revision: branch, tag or commit of a repository.
            token: access token for a private repository.

        Raises:
            ValueError: nothing there, a file missing or damaged, or written by a newer clipmend; the file is named.
        """
        folder = locate_patch(name, revision=revision, token=token)
        described, tensors = read_patch(folder)
        source = str(folder / "config.json")
        # Patches from before the direct paths do not name them; their weights are those of the network without.
        config = PeakPatchConfig.from_dict({"use_direct": False, **described["config"]}, source)
        try:
            fingerprint = Fingerprint(**described["backbone"]["fingerprint"])
            backbone = str(described["backbone"]["name"])
        except (KeyError, TypeError) as error:
            raise ValueError(f'{source}: the entry "backbone" needs a name and a fingerprint (text, image, tokenizer)') from error
        if config.is_resolved:
            check_fit(config, tensors, folder)
        try:
            patch = cls(
                config,
                backbone=backbone,
                fingerprint=fingerprint,
                metrics=described["metrics"],
                training_data=described["training_data"],
                command=described["command"],
            )
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error
        patch._load(tensors)
        return patch

    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        for prefix, network in (("ecn.", self.ecn), ("scn.", self.scn)):
            if network is not None:
                network.load_state_dict(part_of(tensors, prefix))
                network.eval()

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        revision: str | None = None,
        commit_message: str = "Upload a PeakPatch",
        dtype: torch.dtype = torch.float32,
    ) -> str:
        """Upload the patch to the hub, making the repository if need be.

        Args:
            repo_id: ``"owner/name"``.
            private: whether a new repository is private (default: what the account says).
            token: access token (default: the one that ``hf auth login`` has kept).
            revision: branch to upload to.
            commit_message: of the upload.
            dtype: as for :meth:`save_pretrained`.

        Returns:
            address of the commit.

        Raises:
            OSError: the hub cannot be reached.
        """
        import huggingface_hub

        problem = hub_problem()
        if problem:
            raise OSError(f"the patch cannot be uploaded to {repo_id}: {problem}")
        api = huggingface_hub.HfApi(token=token)
        with tempfile.TemporaryDirectory() as parent:
            folder = self.save_pretrained(Path(parent) / "patch", dtype)
            api.create_repo(repo_id, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=repo_id, folder_path=folder, revision=revision, commit_message=commit_message)
        return str(commit)
